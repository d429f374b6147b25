import atexit
import os
import signal

atexit.register(print, "atexit")
try:
    os.kill(os.getpid(), signal.SIGINT)
finally:
    print("finally")
