from common import RANK
from group import join, train

join()
train(5)
if RANK == 2:
    raise ValueError("bad batch 17")
train()
