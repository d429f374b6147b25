import inspect
import linecache
import sys


class Shown:
    """A class whose text is asked for."""

    def method(self):
        return inspect.currentframe().f_lineno


print(inspect.getsource(Shown), inspect.getsourcefile(Shown), inspect.getmodule(Shown).__name__, Shown().method())
print(
    linecache.getline(__file__, 1),
    __loader__.get_source("__main__")[:14],
    inspect.getsource(sys.modules["__main__"])[:6],
)
print(__loader__.is_package("__main__"), __loader__.get_filename("__main__"), inspect.getdoc(Shown))
print(inspect.getframeinfo(inspect.currentframe()).function, inspect.stack()[0].function)
