import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from common import RANK
from group import join, together, train


def watch(gives_up_at):
    time.sleep(gives_up_at - time.monotonic())
    print("watchdog: no step for 3 s, giving up", file=sys.stderr, flush=True)
    os._exit(17)


join()
train(5)
# All at one moment, on a busy machine too: the first to give up has the others stopped.
gives_up_at = torch.tensor([time.monotonic() + 3], dtype=torch.float64)
dist.broadcast(gives_up_at, 0)
if RANK != 2:
    threading.Thread(target=watch, args=[gives_up_at.item()], daemon=True).start()
else:
    time.sleep(30)
together()
