"""A small network learns to tell two spirals apart, with Hugging Face accelerate, from checkpoint to checkpoint.

It knows nothing of hpc_elastic: `torchrun --nproc-per-node 2 train.py` and `accelerate launch train.py` run it as well.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, broadcast_object_list, set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

BATCH = 96  # of all ranks together, because of split_batches: a multiple of every world size that may come


def make_spirals(points: int = 960) -> TensorDataset:
    random = torch.Generator().manual_seed(0)
    spirals = torch.arange(points) % 2
    distance = torch.rand(points, generator=random).sqrt()
    angle = 2 * math.pi * distance + math.pi * spirals
    places = torch.stack([distance * angle.cos(), distance * angle.sin()], dim=1)
    return TensorDataset(places + 0.01 * torch.randn(points, 2, generator=random), spirals)


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Gives a checkpoint its name when all ranks have written their part: one that has a name is complete."""
    accelerator.save_state(str(folder / "unfinished"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.replace(folder / "unfinished", folder / f"step_{step}")
    accelerator.wait_for_everyone()


def find_last_step(folder: Path) -> int:
    """The step of the last complete checkpoint, 0 without one; every rank gets what the main one sees."""
    steps = [int(path.name.removeprefix("step_")) for path in folder.glob("step_*")]
    return int(broadcast_object_list([max(steps, default=0)])[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60)
    run_directory = os.environ.get("HPC_ELASTIC_RUN_DIR", ".")
    parser.add_argument("--checkpoints", type=Path, default=Path(run_directory, "checkpoints"), metavar="DIR")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    arguments = parser.parse_args()

    # Without cpu=True every rank of a machine without GPUs would train for itself.
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        dataloader_config=DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True),
    )
    set_seed(0)
    network = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    loader = DataLoader(make_spirals(), batch_size=BATCH, shuffle=True)
    network, optimizer, loader = accelerator.prepare(network, optimizer, loader)

    step = find_last_step(arguments.checkpoints)
    if step:
        accelerator.load_state(str(arguments.checkpoints / f"step_{step}"))
    accelerator.print(f"{'resumed after' if step else 'started at'} step {step} on {accelerator.num_processes} ranks")
    first_epoch, done = divmod(step, len(loader))
    for epoch in range(first_epoch, arguments.epochs):
        loader.set_epoch(epoch)
        right = total = 0
        for points, spirals in accelerator.skip_first_batches(loader, done) if done else loader:
            answers = network(points)
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(answers, spirals))
            optimizer.step()
            step += 1
            right += int(accelerator.gather((answers.argmax(dim=1) == spirals).sum()).sum())
            total += BATCH
            if step % arguments.checkpoint_every == 0 or step == arguments.epochs * len(loader):
                save(accelerator, arguments.checkpoints, step)
        done = 0
        accelerator.print(f"epoch {epoch + 1}/{arguments.epochs}  accuracy {right / total:.1%}", flush=True)
    # On CPUs torch 2.13 may wait for ever where DistributedDataParallel ends after its process group.
    network, optimizer, loader = accelerator.free_memory(network, optimizer, loader)
    accelerator.end_training()


if __name__ == "__main__":
    main()
