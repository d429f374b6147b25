import threading
import time

from common import RANK, here
from group import join, together

from hpc_elastic.worker import heartbeat

join(120)
for step in range(10**9):
    together()
    if RANK == 0:
        heartbeat(step)
    if step == 3:
        here()
    if step == 20 and RANK == 2:
        threading.Event().wait()
    time.sleep(0.01)
