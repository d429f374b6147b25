from common import RANK, raise_natively, wait

if RANK == 1:
    raise_natively(RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"))
wait()
