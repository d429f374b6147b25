"""Mounts a file system that never answers, for one program: `hung_disk.py DIRECTORY PROGRAM...`.

It is a FUSE file system whose server answers the first message, INIT, and takes every later one without an answer:
whoever asks it for anything waits in the kernel, and no signal but the end of this server ends that. It needs root,
and only the program sees it. The server ends with the program. Source: Linux,
Documentation/filesystems/fuse.rst and include/uapi/linux/fuse.h.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
IN_HEADER, OUT_HEADER = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
INIT, DIRECTORY = 26, 0o40000


def mount(directory: str) -> int:
    """Mount the file system for this process and its children; return the descriptor of its requests."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode={DIRECTORY:o},user_id=0,group_id=0".encode()
    for failed in (
        libc.unshare(CLONE_NEWNS),
        libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
        libc.mount(b"hung", directory.encode(), b"fuse", 0, options),
    ):
        if failed:
            raise OSError(ctypes.get_errno(), "cannot mount a FUSE file system")
    return device


def serve(device: int) -> None:
    """Answer INIT, and nothing else."""
    while True:
        request = os.read(device, 1 << 20)
        _, opcode, unique, *_ = IN_HEADER.unpack_from(request)
        if opcode == INIT:
            major, minor, readahead, _ = struct.unpack_from("<IIII", request, IN_HEADER.size)
            answer = struct.pack("<IIIIHHIIHHI7I", major, min(minor, 31), readahead, 0, 16, 12, 4096, 1, 0, 0, *[0] * 8)
            os.write(device, OUT_HEADER.pack(OUT_HEADER.size + len(answer), 0, unique) + answer)


def main() -> int:
    directory, *program = sys.argv[1:]
    device = mount(directory)
    threading.Thread(target=serve, args=(device,), daemon=True).start()
    return subprocess.run(program, env={**os.environ, "TMPDIR": directory}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
