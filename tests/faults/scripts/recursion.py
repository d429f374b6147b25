from common import RANK, wait


def walk(depth):
    return walk(depth + 1) + 1


if RANK == 2:
    walk(0)
wait()
