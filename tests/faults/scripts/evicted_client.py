from common import RANK, wait

if RANK == 3:
    raise OSError(108, "Cannot send after transport endpoint shutdown", "/scratch/data")
wait()
