import sys
import threading

from common import RANK, wait


def fetch():
    return {}["batch"]


if RANK == 1:
    thread = threading.Thread(target=fetch)
    thread.start()
    thread.join()
    sys.exit(1)
wait()
