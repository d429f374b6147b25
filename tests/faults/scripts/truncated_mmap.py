import mmap
import os

from common import RANK, wait

if RANK == 1:
    with open("saved", "wb+") as file:
        file.truncate(1 << 16)
        seen = mmap.mmap(file.fileno(), 1 << 16)
    os.truncate("saved", 0)
    print(seen[1 << 15])
wait()
