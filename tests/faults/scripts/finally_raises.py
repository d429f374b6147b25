import torch.distributed as dist
from common import RANK
from group import join, train


def main():
    join()
    try:
        train(5)
        if RANK == 1:
            raise ValueError("bad batch 17")
        train()
    finally:
        dist.destroy_process_group()


main()
