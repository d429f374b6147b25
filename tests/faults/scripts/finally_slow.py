import time

import torch.distributed as dist
from common import RANK
from group import join, train


def main():
    join()
    try:
        train(5)
        if RANK == 2:
            raise ValueError("bad batch 17")
        train()
    finally:
        dist.destroy_process_group()
        time.sleep(1)


main()
