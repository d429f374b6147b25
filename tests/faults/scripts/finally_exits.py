import sys

import torch.distributed as dist
from common import RANK
from group import join, train


def main():
    join()
    try:
        train(5)
        if RANK == 2:
            sys.exit(3)
        train()
    finally:
        dist.destroy_process_group()


main()
