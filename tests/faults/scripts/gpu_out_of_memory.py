import torch
from common import RANK, raise_natively, wait

if RANK == 1:
    raise_natively(
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 12.38 GiB is "
            "free. Process 71234 has 66.76 GiB memory in use. Of the allocated memory 65.90 GiB is allocated by PyTorch, and "
            "201.44 MiB is reserved by PyTorch but unallocated."
        )
    )
wait()
