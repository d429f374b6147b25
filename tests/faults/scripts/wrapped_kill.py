import os
import subprocess
import sys

from common import RANK
from group import join, train


def work():
    join()
    train(5)
    if RANK == 2:
        os.kill(os.getpid(), 9)
    train()


if sys.argv[1:] == ["work"]:
    work()
else:
    sys.exit(subprocess.call([sys.executable, __file__, "work"]))
