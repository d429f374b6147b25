import runpy
import sys

import state

names = runpy.run_path("neighbour.py", run_name="__main__")
print(names["value"], names["__name__"], __name__, sys.argv, sys.modules["__main__"].__dict__ is globals())
runpy.run_module("neighbour", run_name="other", alter_sys=True)
exec(compile("print(__file__, __name__)", "<text>", "exec"))
state.note("after")
