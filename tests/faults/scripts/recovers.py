from common import ATTEMPT, RANK, wait

if ATTEMPT == 1:
    if RANK == 1:
        raise ValueError("bad batch 17")
    wait()
