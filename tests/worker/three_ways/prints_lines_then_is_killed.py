import os
import signal
import sys

for number in range(2000):
    print("line", number)
sys.stderr.write("part of a line")
os.kill(os.getpid(), signal.SIGKILL)
