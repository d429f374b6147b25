import os

from common import RANK
from group import join, train

join()
train(5)
if RANK == 3:
    os._exit(4)
try:
    train()
except RuntimeError:
    os.abort()
