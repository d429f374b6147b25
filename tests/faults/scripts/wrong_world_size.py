from datetime import timedelta

import torch.distributed as dist
from common import RANK
from group import train

dist.init_process_group("gloo", rank=RANK, world_size=8, timeout=timedelta(seconds=3))
train()
