"""Process 1 of a machine: arranges its mounts, starts its daemons, buries its dead.

It runs by path in fresh namespaces and talks with the keeper by lines: it says `namespaces`, reads
what the machine is to be (its cable is there then), starts the daemons, says `started`. When its
standard input ends, the keeper is gone and so is the machine: the kernel kills everything else in a
PID namespace with its process 1.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from types import FrameType
from typing import Any


def main() -> None:
    """Runs the machine that the first line of input describes, until the input ends."""
    print("namespaces", flush=True)
    machine = json.loads(sys.stdin.readline())
    socket.sethostname(machine["name"])
    for source, target in machine["binds"]:
        subprocess.run(["mount", "--bind", source, target], check=True)
    for target in machine["memory_file_systems"]:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", target], check=True)
    with open(machine["log"], "ab") as log:
        for daemon in machine["daemons"]:
            start_daemon(daemon, log)
    signal.signal(signal.SIGCHLD, bury)
    bury(0, None)
    print("started", flush=True)
    sys.stdin.read()


def start_daemon(command: list[str], log: Any) -> None:
    """Starts a daemon, which puts itself into the background when it is ready."""
    subprocess.run(
        command, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]}
    )


def bury(_signal: int, _frame: FrameType | None) -> None:
    """Collects every child that ended; orphans of the whole machine become children of process 1."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main()
