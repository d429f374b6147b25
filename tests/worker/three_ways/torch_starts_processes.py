import sys

import torch
import torch.multiprocessing


def work(rank, tensor):
    tensor[rank] += rank
    print("process", rank, flush=True) if rank == 0 else None


def fail(rank):
    raise ValueError(f"in process {rank}")


if __name__ == "__main__":
    shared = torch.ones(2).share_memory_()
    torch.multiprocessing.spawn(work, args=(shared,), nprocs=2)
    print(shared)
    try:
        torch.multiprocessing.start_processes(fail, nprocs=1, start_method="fork")
    except torch.multiprocessing.ProcessRaisedException as error:
        print(str(error).splitlines()[-1], error.error_index)
