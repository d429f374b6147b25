import subprocess
import sys

from common import RANK
from group import join, train


def work():
    join()
    train(5)
    if RANK == 2:
        raise ValueError("bad batch 17")
    train()


if sys.argv[1:] == ["work"]:
    work()
else:
    subprocess.run([sys.executable, __file__, "work"], check=True)
