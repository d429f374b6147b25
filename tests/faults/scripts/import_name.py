from common import RANK, wait

if RANK == 1:
    from collections import OrderedDictionary
wait()
