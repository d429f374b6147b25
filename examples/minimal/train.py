import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
path = os.path.join(os.environ.get("HPC_ELASTIC_RUN_DIR", "."), "minimal.pt")
model = torch.nn.Linear(10, 1)
first = 0
if os.path.exists(path):
    first, weights = torch.load(path)
    model.load_state_dict(weights)
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
for step in range(first, 100):
    x = torch.randn(32, 10)
    loss = (parallel(x) - x.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and step % 10 == 9:
        torch.save((step + 1, model.state_dict()), path + ".tmp")
        os.replace(path + ".tmp", path)
        print(f"step {step + 1}: loss {loss.item():.2e}", flush=True)
dist.destroy_process_group()
