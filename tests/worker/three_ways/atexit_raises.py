import atexit
import sys


def fail():
    raise ValueError("in atexit")


atexit.register(print, "still called")
atexit.register(fail)
atexit.register(lambda: sys.exit(9))
atexit.register(print, "called first")
sys.exit(3)
