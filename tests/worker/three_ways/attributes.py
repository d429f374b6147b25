import builtins
import sys

names = sorted(name for name in globals() if name.startswith("__"))
print(names, __name__, __doc__, __package__, __spec__, __file__, __cached__, __builtins__ is builtins)
print(type(__loader__).__name__, __loader__.name, __loader__.path, sys.modules["__main__"].__dict__ is globals())
print(globals().get("__annotations__"), list(globals())[:9])
