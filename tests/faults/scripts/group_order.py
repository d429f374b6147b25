from datetime import timedelta

import torch
import torch.distributed as dist
from common import RANK
from group import join

join(5)
pairs = [[0, 1, 2], [1, 2, 3]] if RANK != 2 else [[1, 2, 3], [0, 1, 2]]
groups = {tuple(ranks): dist.new_group(ranks, timeout=timedelta(seconds=5)) for ranks in pairs}
for ranks, group in groups.items():
    if RANK in ranks:
        dist.all_reduce(torch.ones(4), group=group)
dist.barrier()
