from common import RANK, wait


def batches():
    yield next(iter([]))


if RANK == 1:
    list(batches())
wait()
