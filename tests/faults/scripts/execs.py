import os

from common import RANK, wait

if RANK == 1:
    os.execv("/bin/bash", ["bash", "-c", "exit 6"])
wait()
