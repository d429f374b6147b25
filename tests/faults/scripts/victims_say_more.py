import atexit
import logging
import sys

from common import RANK
from group import join, train

atexit.register(lambda: print("\n".join(f"wandb: line {n}" for n in range(8)), file=sys.stderr))


def main():
    join()
    train(5)
    if RANK == 2:
        raise ValueError("bad batch 17")
    train()


try:
    main()
except Exception:
    logging.exception("training failed")
    sys.exit(1)
