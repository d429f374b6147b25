"""Serves the TCPStore of rank 0's node, a fresh one each attempt, in a process of its own.

    PYTHON <package>/launch.py hpc_elastic.worker.store_host --parent PID

The process is started with this command, or is a fork of the fork server, which calls `host`.

Theory of operation: the agent (process PID) has no torch, and the store must outlive every worker, so
it is in this process. Standard input is a SOCK_SEQPACKET unix socket; each packet is one JSON object.

    host -> agent   {"state": "ready", "torch": "2.13.0"}              torch is imported
                    {"state": "no_torch", "message": ...}              it cannot be; the host exits 0
    agent -> host   {"attempt": 1, "address": "10.0.0.5", "port": p}   with one listening TCP socket
    host -> agent   {"attempt": 1, "state": "serving"}
                    {"attempt": 1, "state": "failed", "message": ...}  the host waits for the next one

The agent binds and listens before it tells anybody the port. Clients may connect at once: they wait in
the backlog until the store is there. An order ends the store of the attempt before it, whose clients
get a closed connection; no key passes from one to the next. End of file ends the process; so does the
agent's death. Slurm sends the TERM of `scancel` and of preemption to every process of a step: it is
ignored here, because the workers may need the store to write a last checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from hpc_elastic.death_signal import die_with_parent
from hpc_elastic.worker.after_fork import IGNORED

PACKET_LIMIT = 64 * 1024
# Before, torch's libuv store hangs on a listening socket (2.2, 2.3) or refuses it (2.4 to 2.7): pytorch/pytorch#150215.
LIBUV_LISTENS_SINCE = (2, 8)
CONNECT_TIMEOUT = timedelta(seconds=30)  # of the store's own client, to a socket of this machine

Store = Any  # torch's TCPStore; torch is imported late
OpenStore = Callable[[str, int, int], Store]


def main(arguments: Sequence[str]) -> int:
    """Run the store host until the agent is gone; return only if there is no torch."""
    if len(arguments) != 2 or arguments[0] != "--parent" or not arguments[1].isdigit():
        sys.exit(f"hpc-elastic: the store host was given {list(arguments)}, not --parent PID")
    die_with_parent(int(arguments[1]))
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"
    return host(socket.socket(fileno=sys.stdin.fileno()))


def host(agent: socket.socket) -> int:
    """Tell the agent whether there is torch; if so, serve the agent until it is gone, then end the process."""
    # torch looks up the name of every client; a name server that is silent would stop all of them.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    warnings.simplefilter("ignore")  # PYTHONWARNINGS=error is about the ranks' code, and torch's import may warn
    with agent:
        try:
            import torch
        except Exception as error:
            send(agent, {"state": "no_torch", "message": f"{type(error).__name__}: {error}"})
            return 0
        send(agent, {"state": "ready", "torch": str(torch.__version__)})
        serve(agent, open_store)
    os._exit(0)  # a teardown with torch takes half a second, and nothing is left to do


def serve(agent: socket.socket, open_store: OpenStore) -> None:
    """Carry out the agent's orders until it closes its end."""
    current: list[Store] = []  # at most one
    while (received := receive(agent)) is not None:
        order, descriptors = received
        current.clear()  # the last reference: the destructor closes the clients' connections
        attempt = order.get("attempt")
        try:
            (listener,) = descriptors
            current.append(open_store(order["address"], order["port"], listener))
        except Exception as error:
            message = f"no store on {order.get('address')}:{order.get('port')}: {type(error).__name__}: {error}"
            send(agent, {"attempt": attempt, "state": "failed", "message": message})
        else:
            send(agent, {"attempt": attempt, "state": "serving"})


def open_store(address: str, port: int, listener: int) -> Store:
    """Serve a TCPStore on a listening socket, which the store owns from now on.

    Args:
        address: of this machine, where clients connect; the store's own client does too.
        port: the listener's.
        listener: its file descriptor.

    Raises:
        RuntimeError: torch cannot make the store (torch.distributed.DistError and its subclasses).
    """
    from torch import __version__
    from torch.distributed import TCPStore

    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=CONNECT_TIMEOUT,
        master_listen_fd=listener,
        use_libuv=takes_listener_with_libuv(str(__version__)),
    )


def takes_listener_with_libuv(torch: str) -> bool:
    """Return whether the libuv store of this version of torch can be given a listening socket.

    The older store, which is there in every version, can always; it is slower with thousands of clients.
    """
    numbers = re.match(r"(\d+)\.(\d+)", torch)
    return numbers is None or (int(numbers[1]), int(numbers[2])) >= LIBUV_LISTENS_SINCE


def send(agent: socket.socket, message: dict[str, Any]) -> None:
    """Send one packet; an agent that is gone is noticed at the next `receive`."""
    try:
        agent.send(json.dumps(message).encode()[:PACKET_LIMIT])
    except (BrokenPipeError, ConnectionResetError):
        return


def receive(agent: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Wait for one packet and the descriptors that came with it; None when the agent is gone."""
    try:
        packet, descriptors, _, _ = socket.recv_fds(agent, PACKET_LIMIT, 1)
    except ConnectionResetError:
        return None
    return (json.loads(packet), descriptors) if packet else None
