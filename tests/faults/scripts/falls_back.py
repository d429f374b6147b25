import errno

from common import RANK, wait

if RANK != 1:
    wait()


def train():
    raise ValueError("bad batch 17")


try:
    raise OSError(errno.ENOSPC, "No space left on device", "/scratch/cache")
except OSError:
    train()
