import sys

from common import RANK
from group import join, train

join(60)
train(5)
if RANK == 2:
    print("Loss is nan, stopping training", flush=True)
    sys.exit(1)
train()
