import sys
import traceback


def hook(kind, value, frames):
    print("hook", kind.__name__, value, sys.last_value is value, sys.last_traceback is frames)
    traceback.print_exception(kind, value, frames)
    print(__file__)


sys.excepthook = hook
raise OSError(5, "told to the hook")
