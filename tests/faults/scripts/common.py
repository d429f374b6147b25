"""What every job of this folder needs: who it is, and waiting."""

import ctypes
import os
import threading
import time

RANK = int(os.environ["RANK"])
NODE = os.environ["HPC_ELASTIC_NODE"]
ATTEMPT = int(os.environ["HPC_ELASTIC_ATTEMPT"])


def here():
    """Say that this rank is at work."""
    print("here", flush=True)


def wait():
    """Be at work until somebody ends it."""
    here()
    threading.Event().wait()


def until(path):
    """Be at work until there is a file of this name."""
    here()
    while not os.path.exists(path):
        time.sleep(0.005)


def meet(count, name="met"):
    """Return once so many ranks are here, at nearly the same moment."""
    open(f"{name}-{RANK}", "w").close()
    while sum(file.startswith(f"{name}-") for file in os.listdir(".")) < count:
        time.sleep(0.001)


def raise_natively(error):
    """Raise an error as native code does: its last Python frame calls something, and has no raise statement."""
    ctypes.pythonapi.PyErr_SetObject(ctypes.py_object(type(error)), ctypes.py_object(error))
