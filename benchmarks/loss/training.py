"""What `node_loss` trains: an all-reduce a step; each process appends a line a step to a file of its own.

The clock is the one that the kernel counts the start of a process with, and the same in every namespace of a machine.
"""

from __future__ import annotations

import datetime as dt
import os
import pathlib
import signal
import socket
import time

STARTED_TICKS = 19  # the field of /proc/self/stat behind the command's name, in ticks of 10 ms
COLLECTIVE_TIMEOUT = dt.timedelta(seconds=60)  # torchrun has nothing else to find a cut cable by
PAUSE_S = 0.02  # else the loop would take the cores from what is measured


def main(stamps: pathlib.Path) -> None:
    ticks = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[STARTED_TICKS])
    began = ticks / os.sysconf("SC_CLK_TCK")
    name = f"{socket.gethostname()}-{os.getpid()}-{began}"

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    crash, stop = stamps / "crash", stamps / "stop"
    with (stamps / f"{name}.steps").open("w", buffering=1) as file:
        file.write(f"{began} {rank} {world_size}\n")
        values = torch.zeros(1024)
        while not values[0]:
            values[0] = stop.exists()
            dist.all_reduce(values)
            file.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\n")
            if rank == world_size - 1 and crash.exists():
                crash.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(PAUSE_S)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(pathlib.Path(os.environ["STAMPS"]))
