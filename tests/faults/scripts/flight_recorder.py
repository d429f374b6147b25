import os
import threading
import time

from common import RANK
from group import join, together, train
from torch._C._distributed_c10d import _dump_fr_trace


def dump():
    # NCCL's watchdog writes this file at a time-out; gloo has the recorder and no watchdog.
    with open(f"{path(RANK)}.part", "wb") as file:
        file.write(_dump_fr_trace())
    os.rename(f"{path(RANK)}.part", path(RANK))


def path(rank):
    return f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}"


join(4)
train(5)
threading.Timer(2, dump).start()
if RANK == 3:
    threading.Event().wait()
try:
    together(8)
finally:  # the first rank that fails has the others killed
    deadline = time.monotonic() + 60
    while not all(os.path.exists(path(rank)) for rank in range(4)) and time.monotonic() < deadline:
        time.sleep(0.05)
train()
