import ctypes
import time

from common import RANK
from hpc_elastic.worker import heartbeat

for step in range(1_000_000):
    heartbeat(step)
    if RANK == 1 and step == 20:
        ctypes.PyDLL(None).sleep(600)
    time.sleep(0.01)
