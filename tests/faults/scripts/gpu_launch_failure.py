from common import RANK, raise_natively, wait

MORE = """
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
if RANK == 1:
    raise_natively(RuntimeError(f"CUDA error: unspecified launch failure{MORE}"))
wait()
