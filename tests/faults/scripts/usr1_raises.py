import signal

from common import RANK
from group import join, train


def leave(number, frame):
    raise RuntimeError("asked to leave by USR1")


join(60)
train(5)
if RANK == 2:
    signal.signal(signal.SIGUSR1, leave)
    signal.raise_signal(signal.SIGUSR1)
train()
