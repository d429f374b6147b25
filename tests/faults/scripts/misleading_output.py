import sys
import traceback

from common import RANK, wait

if RANK == 1:
    try:
        raise OSError(28, "No space left on device")
    except OSError:
        traceback.print_exc()
    print("RuntimeError: CUDA error: out of memory", file=sys.stderr, flush=True)
wait()
