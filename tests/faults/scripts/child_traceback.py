import multiprocessing
import os
import signal

from common import RANK
from group import join, train


def prefetch():
    raise KeyError("no such shard")


join(60)
train(5)
if RANK == 3:
    child = multiprocessing.get_context("fork").Process(target=prefetch)
    child.start()
    child.join()
    train(20)
    os.kill(os.getpid(), signal.SIGKILL)
train()
