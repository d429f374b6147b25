import os
import signal
import sys

for number in range(9):
    sys.stdout.write(f"{number}" * 1500)
os.kill(os.getpid(), signal.SIGKILL)
