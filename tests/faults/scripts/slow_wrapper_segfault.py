import ctypes

from common import RANK
from group import join, train

join()
train(5)
if RANK == 2:
    ctypes.string_at(0)
train()
