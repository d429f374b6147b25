from common import RANK, wait

if RANK == 2:
    raise ValueError("'CUDA error: out of memory: No space left on device: Connection closed by peer' is not a number")
wait()
