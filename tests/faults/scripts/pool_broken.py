import os
from concurrent.futures import ProcessPoolExecutor

from common import RANK, wait


def tokenize(number):
    if number == 3:
        os._exit(7)
    return number


if RANK == 1:
    with ProcessPoolExecutor(2) as pool:
        print(sum(pool.map(tokenize, range(8))))
wait()
