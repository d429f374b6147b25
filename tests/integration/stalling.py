"""Workers that train with gloo and beat; in the first attempt one of them stops in the way that an argument names.

    stalling.py HOW RANK

Each step is a heartbeat and an all_reduce; the second attempt comes to its end.
"""

import ctypes
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

from hpc_elastic.worker import heartbeat

STEPS, STOPS_AT = 12, 4


def stop_somewhere(how: str) -> None:
    """Stops in the way named."""
    if how == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif how == "sleeps_in_c":
        while True:
            ctypes.CDLL(None).sleep(1000)
    elif how == "holds_gil":
        while True:
            ctypes.PyDLL(None).sleep(1000)
    elif how == "sigstop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "skips":
        other = torch.zeros(2)
        dist.broadcast(other, src=int(os.environ["RANK"]))  # small: it does not wait for its receivers
        dist.barrier()
    elif how == "child":
        pid = os.fork()
        if not pid:
            heartbeat(99)  # does nothing: the child is not the rank
            os._exit(7)
        read, _ = os.pipe()
        os.read(read, 1)  # waits for ever for what the dead child was to send


def main() -> None:
    how, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    for step in range(STEPS):
        is_stopping = os.environ["HPC_ELASTIC_ATTEMPT"] == "1" and int(os.environ["RANK"]) == rank and step == STOPS_AT
        if is_stopping:
            stop_somewhere(how)
        dist.all_reduce(torch.ones(1))
        if how != "never" or int(os.environ["RANK"]) != rank:
            heartbeat(step)
        time.sleep(0.5 if how == "never" else 0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
