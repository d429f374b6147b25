import torch
from common import RANK
from group import join


class Model(torch.nn.Linear):
    def forward(self, batch):
        if RANK == 1 and batch[0, 0] > 2:
            raise ValueError("bad batch 17")
        return super().forward(batch)


join()
model = torch.nn.parallel.DistributedDataParallel(Model(4, 2))
for number in range(1000):
    model(torch.full((3, 4), float(number))).sum().backward()
