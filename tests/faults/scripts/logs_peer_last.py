import logging
import sys
import time

import torch.distributed as dist
from common import RANK
from group import join, train

join(60)
train(5)
try:
    if RANK == 2:
        raise ValueError("bad batch 17")
    train()
except ValueError:
    logging.exception("the step failed")
    time.sleep(0.2)
    dist.destroy_process_group()
    logging.exception("no clean end: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234")
    sys.exit(1)
