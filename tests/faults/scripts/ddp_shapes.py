import torch
from common import RANK
from group import join

join(5)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3 if RANK == 1 else 2))
for _ in range(1000):
    model(torch.ones(3, 4)).sum().backward()
