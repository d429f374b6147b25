from common import RANK, raise_natively, wait

if RANK == 1:
    raise_natively(RuntimeError("No CUDA GPUs are available"))
wait()
