from common import RANK, wait

if RANK == 3:
    raise ValueError("bad name \udcff\ud800 of a file")
wait()
