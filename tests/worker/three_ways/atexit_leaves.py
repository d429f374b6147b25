import atexit
import os

atexit.register(os._exit, 11)
print("printed, not flushed")
