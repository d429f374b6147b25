"""What `recovery` trains: DistributedDataParallel and an optimizer; each process stamps its moments into a file.

The moments of a file, a line each, are a name and seconds of the clock that the kernel counts the start of a process
with, which is the same in every namespace of a machine. The calls of `mark` are for a trace of file calls: they ask for
files that are never there.
"""

from __future__ import annotations

import datetime as dt
import os
import pathlib
import socket
import time

FIRST_LINE = time.clock_gettime(time.CLOCK_BOOTTIME)
STARTED_TICKS = 19  # the field of /proc/self/stat behind the command's name, in ticks of 10 ms
COLLECTIVE_TIMEOUT = dt.timedelta(seconds=60)
PAUSE_S = 0.02  # else the loop would take the cores from what is measured


def mark(stamps: pathlib.Path, name: str) -> None:
    (stamps / f"mark-{name}").exists()


def main(stamps: pathlib.Path) -> None:
    mark(stamps, "first-line")
    ticks = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[STARTED_TICKS])
    began = ticks / os.sysconf("SC_CLK_TCK")
    name = f"{socket.gethostname()}-{os.getpid()}-{FIRST_LINE}"

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    imported = time.clock_gettime(time.CLOCK_BOOTTIME)
    dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
    joined = time.clock_gettime(time.CLOCK_BOOTTIME)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(32, 64), torch.randint(10, (32,))
    crash, stop = stamps / "crash", stamps / "stop"
    is_over = torch.zeros(1)
    with (stamps / f"{name}.moments").open("w", buffering=1) as file:
        file.write(f"{rank} {world_size}\nbegan {began}\nfirst_line {FIRST_LINE}\n")
        file.write(f"imported {imported}\njoined {joined}\n")
        is_first = True
        while not is_over[0]:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            is_over[0] = stop.exists()
            dist.all_reduce(is_over)
            if is_first:
                file.write(f"stepped {time.clock_gettime(time.CLOCK_BOOTTIME)}\n")
                mark(stamps, "stepped")
                is_first = False
            if rank == world_size - 1 and crash.exists():
                crash.unlink()
                mark(stamps, "raises")
                file.write(f"raised {time.clock_gettime(time.CLOCK_BOOTTIME)}\n")
                raise RuntimeError("as the benchmark says")
            time.sleep(PAUSE_S)
    del model  # torch 2.13 may wait for ever where DistributedDataParallel ends after its group
    dist.destroy_process_group()


if __name__ == "__main__":
    main(pathlib.Path(os.environ["STAMPS"]))
