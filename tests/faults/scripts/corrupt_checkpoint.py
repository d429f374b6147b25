import os

import torch
import torch.distributed as dist
from group import join

join()
if dist.get_rank() == 0:
    torch.save({"weights": torch.ones(1 << 10)}, "last.pt")
    os.truncate("last.pt", 2000)
    torch.load("last.pt")
dist.broadcast(torch.ones(1 << 10), src=0)
