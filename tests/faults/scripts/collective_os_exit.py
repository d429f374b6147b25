import os

from common import RANK
from group import join, train

join()
train(5)
if RANK == 0:
    os._exit(1)
train()
