import os
import signal
import sys
import time

print("lost")
if sys.argv[1] == "ALRM":
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(30)
os.kill(os.getpid(), getattr(signal, f"SIG{sys.argv[1]}"))
print("lives on")
