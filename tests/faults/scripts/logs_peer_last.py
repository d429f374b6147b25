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
    try:
        dist.send(__import__("torch").ones(1), (RANK + 5) % 4)
        dist.monitored_barrier()
    except (RuntimeError, ValueError) as error:
        logging.error("no clean end: [enforce fail] Connection closed by peer [127.0.0.1]:1234 (%s)", type(error))
    sys.exit(1)
