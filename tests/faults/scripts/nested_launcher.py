import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
is_bad = os.environ["HPC_ELASTIC_NODE"].endswith("1") and dist.get_rank() == 1
for step in range(10_000):
    dist.all_reduce(torch.ones(2))
    if step == 9 and is_bad:
        raise ValueError("bad batch 17")
    time.sleep(0.01)
