import argparse
import os
import time

import torch
import torch.distributed as dist
from checkpoints import EVERY, FOLDER, STEPS, path_of, saved

parser = argparse.ArgumentParser()
parser.add_argument("--fail-at-step", type=int, help="raise once, to see this role start again alone")
fail_at_step = parser.parse_args().fail_at_step

# This role restarts alone, so MASTER_ADDR is a store of its own, new at each start of the role.
rank, size = int(os.environ["ROLE_RANK"]), int(os.environ["ROLE_WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=size)
scores = FOLDER / "scores.csv"
done = torch.tensor(len(scores.read_text().splitlines()) if scores.exists() else 0)
dist.broadcast(done, 0)
# Each rank has its own part of the data that training never sees.
x = torch.randn(500, 10, generator=torch.Generator().manual_seed(rank))
for step in range((int(done) + 1) * EVERY, STEPS + 1, EVERY):
    while step not in saved():
        time.sleep(0.05)
    if step == fail_at_step and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError(f"asked to fail at step {step}")
    model = torch.nn.Linear(10, 1)
    model.load_state_dict(torch.load(path_of(step)))
    with torch.no_grad():
        error = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
    dist.all_reduce(error)
    if rank == 0:
        with open(scores, "a") as file:
            file.write(f"{step},{error.item() / size}\n")
        print(f"step {step}: error {error.item() / size:.2e}", flush=True)
dist.destroy_process_group()
