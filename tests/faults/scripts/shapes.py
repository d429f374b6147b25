from common import RANK
from group import join, together, train

join(5)
train(5)
together(1000 if RANK == 2 else 4)
train()
