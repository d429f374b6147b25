import os
import signal
import time

from common import RANK, wait


def stop(number, frame):
    raise RuntimeError("handler failed")


if RANK == 0:
    signal.signal(signal.SIGTERM, stop)
    open("ready", "w").close()
    wait()
if RANK == 2:
    while not os.path.exists("ready"):
        time.sleep(0.005)
    raise ValueError("bad batch 17")
wait()
