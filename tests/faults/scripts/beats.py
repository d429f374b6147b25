import time

from common import here
from hpc_elastic.worker import heartbeat

for step in range(1_000_000):
    heartbeat(step)
    if step == 3:
        here()
    time.sleep(0.01)
