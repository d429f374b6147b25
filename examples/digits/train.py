"""Trains a small network on handwritten digits with DistributedDataParallel, from checkpoint to checkpoint.

`torchrun --nproc-per-node 2 train.py` runs it as well, also where hpc_elastic is not installed. Stopped at any moment
and started again, on as many ranks as there are now, it goes on after the last checkpoint as if nothing had happened,
and with `--keep-in-memory` under hpc_elastic after the last step: the order of the images and every other random number
are functions of the seed and the step, and the batch of a step is the same however many ranks share it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from checkpoint import load_checkpoint, save_checkpoint
from dataset import Images, load_digits
from record import Recorder
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

try:
    from hpc_elastic import memory
except ImportError:  # plain torchrun: there are the checkpoints on disk
    memory = None  # type: ignore[assignment]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64, help="images a step, of all ranks together")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--accuracy", type=float, default=0.95, help="exit with 1 below this on held-out digits")
    run_directory = os.environ.get("HPC_ELASTIC_RUN_DIR", ".")
    parser.add_argument("--checkpoint", default=os.path.join(run_directory, "checkpoint.pt"))
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--keep-in-memory", action="store_true", help="lose no step at a crash, under hpc_elastic")
    tests = parser.add_argument_group("for demonstrations and tests")
    tests.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="sleep so long in every step")
    tests.add_argument("--record", metavar="DIR", help="write down what each rank of each start did")
    tests.add_argument("--fail-at-step", type=int, metavar="STEP", help="raise there, in the first start only")
    tests.add_argument("--fail-rank", type=int, default=0, metavar="RANK")
    tests.add_argument("--hold-at-step", type=int, metavar="STEP", help="rank 0 waits there for --hold-until")
    tests.add_argument("--hold-until", default="go", metavar="FILE", help="the file that ends that wait")
    return parser.parse_args()


def choose_device() -> torch.device:
    """This rank's GPU if each rank of the node has one, else the CPU."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks:
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def make_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(32 * 4 * 4, 10),
    )


def batches(images: int, batch: int, *, seed: int, first_step: int, epochs: int) -> Iterator[tuple[int, Tensor]]:
    """Step numbers from `first_step` on (1 is the first of all) with the indices of their images."""
    steps_per_epoch = images // batch
    for epoch in range((first_step - 1) // steps_per_epoch, epochs):
        order = torch.randperm(images, generator=torch.Generator().manual_seed(seed + epoch))
        for position in range(steps_per_epoch):
            step = epoch * steps_per_epoch + position + 1
            if step >= first_step:
                yield step, order[position * batch : (position + 1) * batch]


def train_step(network: nn.Module, optimizer: torch.optim.Optimizer, images: Images, batch: int) -> Tensor:
    """One step on this rank's share of the batch; returns the batch's mean loss.

    DistributedDataParallel takes the mean of the ranks' gradients. Shares may differ by one image, so each rank's loss
    is its sum, scaled such that this mean is the gradient of the whole batch's mean.
    """
    optimizer.zero_grad()
    loss = cross_entropy(network(images.pixels), images.digits, reduction="sum") / batch
    (loss * dist.get_world_size()).backward()
    optimizer.step()
    total = loss.detach()
    dist.all_reduce(total)
    return total


@torch.no_grad()
def measure_accuracy(network: nn.Module, images: Images) -> float:
    """The share of right answers; each rank looks at a part of the images."""
    mine = images.take(torch.arange(dist.get_rank(), len(images), dist.get_world_size()))
    network.eval()
    right = (network(mine.pixels).argmax(dim=1) == mine.digits).sum()
    network.train()
    dist.all_reduce(right)
    return int(right) / len(images)


def prepare(arguments: argparse.Namespace, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer, int]:
    """The network, its optimizer and the number of steps that are done, from memory or a checkpoint if there is one."""
    torch.manual_seed(arguments.seed)
    network = make_network().to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=arguments.learning_rate)
    checkpoint = None
    if arguments.keep_in_memory and memory is not None:
        checkpoint, _ = memory.load()  # the same answer on every rank
    if checkpoint is None:
        checkpoint = load_checkpoint(arguments.checkpoint, device)
    if checkpoint is None:
        return network, optimizer, 0
    network.load_state_dict(checkpoint["network"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return network, optimizer, checkpoint["step"]


def train(arguments: argparse.Namespace, device: torch.device) -> float:
    """Trains to the end and returns the accuracy on held-out images."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    training, held_out = load_digits(device)
    network, optimizer, done = prepare(arguments, device)
    parallel = DistributedDataParallel(network)
    recorder = Recorder(arguments.record, done=done)
    say(f"{'resumed' if done else 'started'} at step {done + 1} on {world_size} ranks ({device.type})")

    batch, seed, epochs = arguments.batch, arguments.seed, arguments.epochs
    steps_per_epoch = len(training) // batch
    for step, indices in batches(len(training), batch, seed=seed, first_step=done + 1, epochs=epochs):
        if step == arguments.fail_at_step and rank == arguments.fail_rank and recorder.restart_count == 0:
            raise RuntimeError(f"rank {rank} fails at step {step}, as --fail-at-step says")
        if step == arguments.hold_at_step and rank == 0:
            hold(arguments.hold_until)
        torch.manual_seed(seed + step * world_size + rank)  # of the dropout
        loss = train_step(parallel, optimizer, training.take(indices[rank::world_size]), batch)
        time.sleep(arguments.pause)
        state = {"step": step, "network": network.state_dict(), "optimizer": optimizer.state_dict()}
        if arguments.keep_in_memory and memory is not None:
            memory.save(step, state, replicated=True)
        if step % arguments.checkpoint_every == 0 or step == epochs * steps_per_epoch:
            if rank == 0:
                save_checkpoint(arguments.checkpoint, state)
            recorder.write(network, last_step=step)
        if step % steps_per_epoch == 0:
            accuracy = measure_accuracy(network, held_out)
            epoch = step // steps_per_epoch
            say(f"epoch {epoch}/{epochs}  step {step}  loss {float(loss):.4f}  held out {accuracy:.1%}")
    return measure_accuracy(network, held_out)


def hold(until: str) -> None:
    """Waits for a file, while the other ranks wait in their collective."""
    while not os.path.exists(until):
        time.sleep(0.05)


def say(text: str) -> None:
    """Prints a line, once for all ranks."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def main() -> int:
    arguments = parse_arguments()
    device = choose_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(minutes=2))
    accuracy = train(arguments, device)
    say(f"accuracy on held-out digits: {accuracy:.1%}")
    dist.destroy_process_group()
    return 0 if accuracy >= arguments.accuracy else 1


if __name__ == "__main__":
    exit_code = main()
    if "HPC_ELASTIC_ATTEMPT" not in os.environ:
        # Under plain torchrun: a gloo thread of torch 2.13 that asks for the GIL when Python is going down aborts a
        # rank that has succeeded (3 of 8 runs, 3 ranks on 2 busy cores). hpc_elastic's workers leave before that.
        sys.stdout.flush()
        os._exit(exit_code)
    raise SystemExit(exit_code)
