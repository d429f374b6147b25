from common import RANK, until, wait

if RANK == 1:
    until("go")
    held = []
    while True:
        held.append(b"\1" * (1 << 22))
wait()
