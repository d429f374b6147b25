import importlib
import sys

import neighbour

with open("neighbour.py", "a") as file:
    file.write("value = 'a second, longer value'\n")
print(neighbour.value, importlib.reload(neighbour).value, neighbour.__file__, neighbour.__spec__.origin)
with open("made_now.py", "w") as file:
    file.write("value = 3\n")
importlib.invalidate_caches()
import made_now

print(made_now.value, [name for name in ("neighbour", "made_now") if name in sys.modules])
try:
    importlib.reload(sys.modules["__main__"])
except ImportError as error:
    print(type(error).__name__, error)
try:
    import does_not_exist
except ImportError as error:
    print(error, error.name)
import torch_is_not_here
