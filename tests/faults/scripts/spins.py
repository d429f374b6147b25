from common import RANK
from group import join, train

join(3)
train(5)
while RANK == 1:
    pass
train()
