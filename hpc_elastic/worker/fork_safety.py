"""Checks whether forks of this process work, and behave like fresh processes."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

from hpc_elastic.worker.fork_to_agent import fork_quietly
from hpc_elastic.worker.process_image import set_process_image

THREADS_BOUND_S = 1.0
_DEVICES = ("/dev/nvidia", "/dev/kfd")
_DRIVER = "/libcuda.so"
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED, cuda.h


def find_danger() -> str | None:
    """Return why this process must not be forked, None if it may be; fork once to try."""
    return _find_half_torch() or _find_trace() or _find_gpu() or _try_fork() or _find_children() or _find_threads()


def _find_half_torch() -> str | None:
    """Find an import of torch that failed half way: the next import would fail with another, misleading error."""
    if "torch" not in sys.modules and any(name.startswith("torch.") for name in sys.modules):
        return "the import of torch broke off half way"
    return None


def _find_trace() -> str | None:
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    if sys.gettrace() or sys.getprofile() or any(tools):
        return "a debugger, profiler or coverage tool watches this Python"
    return None


def _find_gpu() -> str | None:
    """Find a CUDA driver or device in use: CUDA and NCCL do not work in forks of the process that initialised them."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        drivers = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if _DRIVER in line}
    for driver in drivers:
        if _is_initialized(driver):
            return "an import has initialised the CUDA driver, which does not survive a fork"
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue  # the descriptor of the listed folder itself
        if target.startswith(_DEVICES):
            return f"an import has opened {target}; what works on a GPU does not survive a fork"
    return None


def _is_initialized(driver: str) -> bool:
    """Return whether a loaded CUDA driver is in use: `import torch` alone loads it, at least in builds for CUDA 13.

    Without `cuInit`, which this does not call, every function of the driver says so. One that cannot be asked counts as
    in use.
    """
    try:
        library = ctypes.CDLL(driver, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return bool(library.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED)
    except (OSError, AttributeError):
        return True


def _try_fork() -> str | None:
    """Make a fork that ends at once, after which OpenBLAS has ended its threads; it also tries `_try_image`."""
    try:
        child = fork_quietly()
    except OSError as error:
        return f"it cannot be forked ({error.strerror})"
    if child == 0:
        os._exit(_try_image())
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        return f"a fork of it was killed by signal {-status}"
    if status > 0:
        return f"the kernel does not let a fork name its own environment in /proc ({os.strerror(status)})"
    return None


def _try_image() -> int:
    """Set this process's image, in the fork that ends at once; return the error number, 0 if /proc shows the image."""
    try:
        set_process_image(["python", "a b"], {"NAME": "value"})
        with open("/proc/self/cmdline", "rb") as arguments, open("/proc/self/environ", "rb") as environment:
            if (arguments.read(), environment.read()) == (b"python\0a b\0", b"NAME=value\0"):
                return 0
    except OSError as error:
        return error.errno or 1
    except BaseException:
        return 1
    return 1


def _find_children() -> str | None:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return "an import has started a process that all forks would share"


def _find_threads() -> str | None:
    """Find threads that imports have left; wait, as a joined thread stays in /proc for a moment."""
    deadline = time.monotonic() + THREADS_BOUND_S
    while (count := len(os.listdir("/proc/self/task"))) > 1:
        if time.monotonic() > deadline:
            names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
            whose = f": {', '.join(names)}" if names else ", none of them Python's"
            return f"an import has left {count - 1} more threads running{whose}"
        time.sleep(0.001)
    return None
