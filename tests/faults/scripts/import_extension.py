import sys

from common import RANK, wait

if RANK == 2:
    with open("fast.so", "wb") as file:
        file.write(b"\x7fELF\x02\x01\x01" + bytes(9))
    sys.path.insert(0, ".")
    import fast
wait()
