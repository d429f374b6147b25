from common import RANK, raise_natively, wait

if RANK == 1:
    raise_natively(RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"))
wait()
