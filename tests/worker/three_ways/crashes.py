import ctypes
import faulthandler
import sys


def crash():
    ctypes.string_at(16)


if sys.argv[1:]:
    faulthandler.enable()
print("lost")
crash()
