import sys


def hook(*error):
    raise RuntimeError("in the hook")


sys.excepthook = hook
raise ValueError("first")
