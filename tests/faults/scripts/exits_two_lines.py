import sys

from common import RANK, wait

if RANK == 1:
    sys.exit("config is wrong: no batch size\nsee the manual, page 3")
wait()
