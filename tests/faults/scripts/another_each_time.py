import os
import signal
import sys

from common import ATTEMPT, RANK, wait

if (ATTEMPT, RANK) == (1, 1):
    raise ValueError("bad batch 17")
if (ATTEMPT, RANK) == (2, 2):
    os.kill(os.getpid(), signal.SIGKILL)
if (ATTEMPT, RANK) == (3, 3):
    sys.exit(4)
wait()
