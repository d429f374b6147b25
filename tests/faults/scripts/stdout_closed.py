import os

from common import RANK, wait

if RANK == 1:
    os.close(1)
    print("loss 0.1", flush=True)
wait()
