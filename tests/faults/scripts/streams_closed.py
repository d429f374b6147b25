import os
import sys

from common import RANK, wait

if RANK == 2:
    sys.stdout.close()
    sys.stderr.close()
    os.closerange(1, 3)
    raise RuntimeError("dark")
wait()
