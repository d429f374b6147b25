import torch.multiprocessing
from common import RANK, wait


def work(index):
    return 1 / index


if __name__ == "__main__":
    if RANK == 1:
        torch.multiprocessing.start_processes(work, nprocs=1, start_method="fork")
    wait()
