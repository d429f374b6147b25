"""Finds out which addresses of other machines answer at all, in one wait for all of them."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections.abc import Collection, Sequence

# A machine that is up answers on at least one of these ports, unless a firewall lets nothing pass: sshd, slurmd (which
# the other nodes' slurmd must reach), and a port without a listener, for which the kernel answers with a reset.
OTHER_PORTS = (22, 6818, 1)
_ANSWERS = (0, errno.ECONNREFUSED)


def find_answering(addresses: Collection[str], ports: Sequence[int], *, within_s: float) -> set[str]:
    """Return those of the IPv4 addresses on which one of the ports accepts or refuses a connection.

    Blocks for `within_s` seconds at most, and only as long as an address has not answered.
    """
    found: set[str] = set()
    until = time.monotonic() + within_s
    with contextlib.ExitStack() as stack:
        poll, waiting = select.poll(), {}
        for address in addresses:
            for port in ports:
                probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                probe.setblocking(False)
                if (number := probe.connect_ex((address, port))) in _ANSWERS:
                    found.add(address)
                elif number == errno.EINPROGRESS:
                    waiting[probe.fileno()] = address, probe
                    poll.register(probe, select.POLLOUT)
        while {address for address, _ in waiting.values()} - found and (left_s := until - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left_s * 1000):
                address, probe = waiting.pop(descriptor)
                poll.unregister(descriptor)
                if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _ANSWERS:
                    found.add(address)
    return found
