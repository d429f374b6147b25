import logging
import sys
import time

import torch.distributed as dist
from common import RANK
from group import join, train


def main():
    join()
    train(5)
    if RANK == 2:
        raise ValueError("bad batch 17")
    train()


try:
    main()
except Exception as e:
    logging.error("failed: %s", e)
    dist.destroy_process_group()
    time.sleep(1)
    sys.exit(5)
