import logging
import sys

from common import RANK
from group import join, train

join()
try:
    train(5)
    if RANK == 1:
        raise ValueError("bad batch 17")
    train()
except RuntimeError:
    logging.exception("training failed")
    sys.exit(1)
