import time
import traceback

from common import RANK, wait


def read(path):
    raise OSError(f"no answer for {path}")


def load():
    for number in range(3):
        try:
            return read("shard-17")
        except OSError:
            traceback.print_exc()
            print(f"try {number} failed", flush=True)
            time.sleep(0.05)
    raise RuntimeError("gave up on shard-17 after 3 tries")


if RANK == 2:
    load()
wait()
