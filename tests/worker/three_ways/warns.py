import sys
import warnings

pattern = "\d"
warnings.warn("old", DeprecationWarning)
print([entry for entry in warnings.filters if entry[2] in (DeprecationWarning, ResourceWarning)], sys.warnoptions)


def caller():
    warnings.warn("look above", stacklevel=2)


for _ in range(2):
    caller()
open("unclosed", "w")
warnings.simplefilter("error")
warnings.warn("is raised")
