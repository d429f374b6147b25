"""Makes /proc show a fork's own command line and environment instead of the fork server's."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping, Sequence

_PR_SET_MM = 35  # prctl(2)
_PR_SET_MM_MAP = 14
_NO_EXE_FILE = 0xFFFFFFFF

_kept: list[mmap.mmap] = []  # the kernel reads these whenever somebody looks


class _PrctlMmMap(ctypes.Structure):
    """`struct prctl_mm_map` of linux/prctl.h."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data")),
        *((name, ctypes.c_uint64) for name in ("start_brk", "brk", "start_stack")),
        *((name, ctypes.c_uint64) for name in ("arg_start", "arg_end", "env_start", "env_end", "auxv")),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


def set_process_image(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Set /proc/PID/cmdline and /proc/PID/environ of this process and of the processes that it forks.

    Everything else that the call sets stays what it is. Source: PR_SET_MM_MAP in prctl(2), Linux 3.18;
    it needs no privilege, only a kernel with CONFIG_CHECKPOINT_RESTORE.

    Raises:
        OSError: the kernel refuses.
    """
    argument_block = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    # Private: a shared mapping reads as empty.
    memory = mmap.mmap(-1, len(argument_block) + len(variables), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(argument_block + variables)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    middle = start + len(argument_block)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    fields = _stat_fields()
    image = _PrctlMmMap(
        start_code=fields[26],
        end_code=fields[27],
        start_stack=fields[28],
        start_data=fields[45],
        end_data=fields[46],
        start_brk=fields[47],
        brk=libc.sbrk(0),
        arg_start=start,
        arg_end=middle,
        env_start=middle,
        env_end=middle + len(variables),
        exe_fd=_NO_EXE_FILE,
    )
    size = ctypes.c_ulong(ctypes.sizeof(image))
    if libc.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), ctypes.byref(image), size, ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_MM_MAP): {os.strerror(number)}")
    _kept[:] = [memory]


def _stat_fields() -> dict[int, int]:
    """Return fields 26 to 51 of /proc/self/stat by their numbers in proc_pid_stat(5)."""
    with open("/proc/self/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
    return {number: int(words[number - 3]) for number in range(26, 52)}
