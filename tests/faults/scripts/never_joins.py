import threading

from common import RANK
from group import join, train

if RANK == 3:
    threading.Event().wait()
join(3)
train()
