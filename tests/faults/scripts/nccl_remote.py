import os
import signal
import time

import torch.distributed as dist
from common import RANK, meet, raise_natively

meet(4)
if RANK == 2:
    time.sleep(0.05)
    open("done", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
while not os.path.exists("done"):
    time.sleep(0.001)
raise_natively(
    dist.DistBackendError(
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a network "
        "error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer node1<40123>"
    )
)
