"""A fork server without torch, which speaks the protocol and misbehaves as it is told by STAND_IN.

    PYTHON launch.py hpc_elastic.worker.fork_server --parent PID --deadline DESCRIPTOR [--preload MODULE]...

It is put into a folder as `launch.py`. Workers are real, and children of the agent by a double fork.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import struct
import sys

BEHAVIOUR = os.environ.get("STAND_IN", "")
STORE_HOST = """
import socket
host = socket.socket(fileno=0)
host.send(b'{"state": "ready"}')
while host.recv(1000):
    host.send(b'{"state": "failed", "attempt": 1, "message": "of a fork"}')
"""


def send(link: socket.socket, message: object) -> None:
    body = json.dumps(message).encode()
    link.sendall(struct.pack(">I", len(body)) + body)


def receive(link: socket.socket) -> tuple[dict[str, object], list[int]]:
    descriptors = array.array("i")
    header, ancillary, _, _ = link.recvmsg(4, socket.CMSG_SPACE(2 * descriptors.itemsize))
    if not header:
        sys.exit(0)
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    body = b""
    while len(body) < struct.unpack(">I", header)[0]:
        body += link.recv(1 << 16)
    return json.loads(body), list(descriptors)


def become(order: dict[str, object], descriptors: list[int]) -> None:
    """Become a worker, which the agent finds by its environment; called in the new process."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    if order["do"] == "store":
        os.dup2(descriptors[0], 0)
        os.execv(sys.executable, [sys.executable, "-c", STORE_HOST])
    left = iter(descriptors)
    for number, stream in ((1, order["stdout"]), (2, order["stderr"])):
        if stream != "inherit":
            os.dup2(next(left) if stream == "file" else 0, number)
    os.chdir(str(order["directory"]))
    os.execve(sys.executable, [sys.executable, str(order["target"]), *order["arguments"]], order["environment"])  # type: ignore[misc, arg-type]


def fork(order: dict[str, object], descriptors: list[int]) -> dict[str, object]:
    """Return the answer to an order, once the new process is the agent's child."""
    if not os.path.isdir(str(order.get("directory", "/"))):
        return {"errno": 2, "message": "No such file or directory", "filename": order["directory"]}
    read, write = os.pipe()
    middle = os.fork()
    if middle == 0:
        worker = os.fork()
        if worker:
            os.write(write, str(worker).encode())
            os._exit(0)
        become(order, descriptors)
    os.waitpid(middle, 0)
    os.close(write)
    with open(read, "rb") as told:  # its end is the new program's start, which has its own environment
        return {"pid": int(told.read())}


def main() -> None:
    link = socket.socket(fileno=os.dup(0))
    if BEHAVIOUR == "dies":
        sys.exit(3)
    if BEHAVIOUR == "waits":
        signal.pause()
    ready = {"state": "ready", "torch": "2.13.0", "no_torch": None, "unsafe": None, "seconds": 1.94, "imported": 1800}
    if BEHAVIOUR == "unsafe":
        ready["unsafe"] = "2 threads run in the process that would be forked"
    if BEHAVIOUR == "no torch":
        ready |= {"torch": None, "no_torch": "ModuleNotFoundError: No module named 'torch'"}
    preloads = sys.argv[7::2]  # after --parent PID --deadline DESCRIPTOR
    send(link, {**ready, "failed_preloads": [[name, "ModuleNotFoundError: no"] for name in preloads]})
    while True:
        order, descriptors = receive(link)
        if BEHAVIOUR == "dies when asked":
            os._exit(3)
        if BEHAVIOUR == "dies when asked first" and not os.path.exists("asked"):
            open("asked", "w").close()
            os._exit(3)
        send(link, fork(order, descriptors))
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    main()
