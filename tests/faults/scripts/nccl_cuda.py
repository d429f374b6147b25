import torch.distributed as dist
from common import RANK, raise_natively, wait

if RANK == 1:
    raise_natively(
        dist.DistBackendError(
            "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled cuda error (run with "
            "NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
            "Last error:\nCuda failure 'peer access is not supported between these two devices'"
        )
    )
wait()
