import os
import threading

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(5)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
print([round(value, 4) for value in model.module.bias.tolist()], threading.active_count())
print(torch.distributed.get_rank(), os.environ["RANK"])
torch.distributed.destroy_process_group()
