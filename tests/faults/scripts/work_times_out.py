import time
from datetime import timedelta

import torch
import torch.distributed as dist
from common import RANK
from group import join, train

join()
train(5)
if RANK == 2:
    time.sleep(60)  # a slow batch
work = dist.all_reduce(torch.ones(4), async_op=True)
work.wait(timedelta(seconds=2))
train()
