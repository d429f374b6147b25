from common import RANK, wait

if RANK == 3:
    raise ExceptionGroup("2 of them", [ValueError("bad batch 17"), KeyError("x")])  # noqa: F821
wait()
