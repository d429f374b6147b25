import ctypes

from common import RANK, wait

if RANK == 3:
    ctypes.CDLL("libdata.so.7")
wait()
