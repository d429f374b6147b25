import threading

from common import RANK, raise_natively, wait


def start():
    raise_natively(RuntimeError("can't start new thread"))


if RANK == 1:
    threading.Thread.start = lambda self: start()
    threading.Thread(target=print).start()
wait()
