"""A small training as a function, which leaves a record of what it did on its rank."""

from __future__ import annotations

import hashlib
import os
from typing import Any

STEPS = 5


def train(seed: int) -> dict[str, Any]:
    """Trains with DistributedDataParallel over gloo; every rank has data of its own."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS):
        loss = model(torch.randn(8, 4, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    parameters = [value for tensor in model.state_dict().values() for value in tensor.flatten().tolist()]
    record = {
        **{name: int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")},
        "losses": losses,
        "parameters": hashlib.sha256(repr(parameters).encode()).hexdigest(),
    }
    # Were the model the last to hold the group, its destructor would join a thread that may wait for the GIL (2.13).
    del model, optimizer, loss
    dist.destroy_process_group()
    return record
