from common import RANK, wait


def close():
    raise RuntimeError("cannot close it")


if RANK == 2:
    try:
        raise ValueError("bad batch 17")
    finally:
        close()
wait()
