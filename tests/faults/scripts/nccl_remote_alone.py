import torch.distributed as dist
from common import RANK, raise_natively, wait

if RANK == 1:
    raise_natively(
        dist.DistBackendError(
            "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a network "
            "error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote process "
            "exiting prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer node1<40123>"
        )
    )
wait()
