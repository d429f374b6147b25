from common import RANK, wait

if RANK == 3:
    raise OSError(122, "Disk quota exceeded", "data/part")
wait()
