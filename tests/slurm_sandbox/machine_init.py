"""Process 1 of a machine: arranges its mounts, starts its daemons, buries its dead.

It runs by path in fresh namespaces and talks with the keeper by lines: it says `namespaces`, reads
what the machine is to be (its cable is there then), starts the daemons, says `started`. When its
standard input ends, the keeper is gone and so is the machine: the kernel kills everything else in a
PID namespace with its process 1.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType
from typing import Any

_CLONE_NEWCGROUP = 0x02000000


def main() -> None:
    """Runs the machine that the first line of input describes, until the input ends."""
    print("namespaces", flush=True)
    machine = json.loads(sys.stdin.readline())
    socket.sethostname(machine["name"])
    for source, target in machine["binds"]:
        subprocess.run(["mount", "--bind", source, target], check=True)
    for target in machine["memory_file_systems"]:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", target], check=True)
    if machine["cgroups"]:
        mount_cgroups(machine["cgroups"])
    with open(machine["log"], "ab") as log:
        for daemon, address in machine["daemons"]:
            if address is None:
                start_daemon(daemon, log)
            else:
                start_service(daemon, address, log)
    signal.signal(signal.SIGCHLD, bury)
    bury(0, None)
    print("started", flush=True)
    sys.stdin.read()


def start_daemon(command: list[str], log: Any) -> None:
    """Starts a daemon, which puts itself into the background when it is ready."""
    subprocess.run(
        command, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]}
    )


def start_service(command: list[str], address: str | list[Any], log: Any) -> None:
    """Starts a program that stays in the foreground, and waits until somebody can connect to it."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    while not is_listening(address):
        if process.poll() is not None:
            raise SystemExit(f"{command} ended with {process.returncode}")
        time.sleep(0.02)


def is_listening(address: str | list[Any]) -> bool:
    """Whether a connection is taken, at the path of a socket or at a host and port."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        return connection.connect_ex(address if isinstance(address, str) else tuple(address)) == 0


def mount_cgroups(controllers: list[str]) -> None:
    """Makes the cgroups that this process is in the roots of the hierarchies that the machine sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWCGROUP):
        raise OSError(ctypes.get_errno(), "no cgroup namespace")
    top = "/sys/fs/cgroup"
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["umount", "--recursive", "--lazy", top], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", top], check=True)
    for controller in controllers:
        target = os.path.join(top, controller)
        os.mkdir(target)
        subprocess.run(["mount", "-t", "cgroup", "-o", controller, "cgroup", target], check=True)


def bury(_signal: int, _frame: FrameType | None) -> None:
    """Collects every child that ended; orphans of the whole machine become children of process 1."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main()
