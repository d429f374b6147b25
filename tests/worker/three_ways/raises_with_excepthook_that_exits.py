import sys

sys.excepthook = lambda *error: sys.exit(17)
raise ValueError("first")
