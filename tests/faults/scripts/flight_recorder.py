import os
import threading

from common import RANK
from group import join, together, train
from torch._C._distributed_c10d import _dump_fr_trace


def dump():
    # NCCL's watchdog writes this file at a time-out; gloo has the recorder and no watchdog.
    path = f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{RANK}"
    with open(path, "wb") as file:
        file.write(_dump_fr_trace())


join(4)
train(5)
threading.Timer(2, dump).start()
if RANK == 3:
    threading.Event().wait()
together(8)
train()
