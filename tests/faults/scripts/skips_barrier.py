import threading
from datetime import timedelta

import torch.distributed as dist
from common import RANK
from group import join, train

join()
train(5)
if RANK == 2:
    threading.Event().wait()
dist.monitored_barrier(timeout=timedelta(seconds=2))
train()
