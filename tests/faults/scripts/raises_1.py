from common import RANK, wait


def step(number):
    if RANK == 1:
        raise ValueError(f"bad batch {number}")
    wait()


step(17)
