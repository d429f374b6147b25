from common import RANK, wait

if RANK == 2:
    raise RuntimeError("size " + "x" * 10_000_000)
wait()
