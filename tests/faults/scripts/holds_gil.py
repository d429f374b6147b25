import ctypes

from common import RANK
from group import join, train

join(3)
train(5)
if RANK == 2:
    ctypes.PyDLL(None).sleep(600)
train()
