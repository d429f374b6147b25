import sys

from common import RANK, wait


def hook(kind, error, frames):
    print("something went wrong; see the wiki", file=sys.stderr)


sys.excepthook = hook
if RANK == 1:
    raise ValueError("bad batch 17")
wait()
