"""Finds addresses (this node's own, other nodes', and the interface that holds one) and opens listening sockets."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpc_elastic.agent.node.answering import OTHER_PORTS, find_answering
from hpc_elastic.errors import AllocationError
from hpc_elastic.plan.launch_plan import NetworkPlan
from hpc_elastic.scheduler.allocation import Allocation

_SIOCGIFADDR = 0x8915  # Linux, netdevice(7): the interface's IPv4 address
BACKLOG = socket.SOMAXCONN  # as much of it as net.core.somaxconn allows
NEIGHBOURS = 4  # so many nodes are asked which network works
ANSWERS_WITHIN_S = 1.0
NAMES_WITHIN_S = (
    4.0  # an unreachable head is to be reported within 10 s: one wait for this node's address, one for the head's
)


def interface_addresses() -> Iterator[tuple[str, str]]:
    """Yield the name and the IPv4 address of each interface that has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                yield name, socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])


def interface_of(address: str) -> str | None:
    """Return the interface that holds this address, `lo` for a loopback address, None if there is none."""
    if address.startswith("127."):
        return "lo"
    return next((name for name, held in interface_addresses() if held == address), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The IPv4 addresses of a name; if there are none, the resolver's error message."""

    addresses: tuple[str, ...] = ()
    error: str = ""


def is_own_address(address: str) -> bool:
    """Return whether an interface of this machine holds the address, as its first or a further address.

    A loopback address does not count, because every machine has it.
    """
    try:
        if ipaddress.ip_address(address).is_loopback:
            return False
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except (OSError, ValueError):
        return False
    return True


def resolve_node(name: str, network: NetworkPlan, *, within_s: float = NAMES_WITHIN_S) -> Lookup:
    """Look up the IPv4 addresses of a node by its name, first with the site's suffix.

    Blocks for `within_s` seconds at most. A name server that does not answer blocks the resolver for
    much longer, and such a call cannot be cancelled: it is left to a daemon thread that nothing waits for.
    """
    names = [f"{name}{network.hostname_transform}"] if network.hostname_transform else []
    answers: queue.SimpleQueue[Lookup] = queue.SimpleQueue()
    look_up = threading.Thread(target=lambda: answers.put(_ask_resolver([*names, name])), daemon=True)
    look_up.start()
    try:
        return answers.get(timeout=max(0.0, within_s))
    except queue.Empty:
        return Lookup(error=f"no answer of the name server within {within_s:.0f} s")


def _ask_resolver(names: Sequence[str]) -> Lookup:
    addresses: list[str] = []
    error = ""
    for name in names:
        try:
            found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
        except OSError as refused:
            error = refused.strerror or str(refused)
        except UnicodeError:
            error = "it is no host name"
        else:
            addresses += [str(entry[4][0]) for entry in found]
    return Lookup(addresses=tuple(dict.fromkeys(addresses)), error="" if addresses else error)


def own_address(allocation: Allocation, network: NetworkPlan) -> str:
    """Return the address that this node publishes; may ask the name server.

    The site's interface decides; else the address that the node's own name resolves to, if an interface here holds
    it; of several, that from which most of the next nodes are reached; else the address from which the kernel would
    reach another node of the step.

    Raises:
        AllocationError: no address can be found; there is no guess and no fall back to localhost.
    """
    if allocation.is_local:
        return allocation.local_address(allocation.node_id)
    held = list(interface_addresses())
    if network.interface:
        for name, address in held:
            if name == network.interface:
                return address
        present = ", ".join(sorted({name for name, _ in held}))
        raise AllocationError(
            f"the site's network.interface {network.interface} has no IPv4 address on {allocation.node}",
            tip=f"interfaces with one: {present}",
        )
    deadline = time.monotonic() + NAMES_WITHIN_S
    usable = {address for _, address in held if not address.startswith("127.")}
    looked_up = resolve_node(allocation.node, network, within_s=deadline - time.monotonic()).addresses
    if named := [address for address in looked_up if address in usable]:
        return named[0] if len(named) == 1 else _best_connected(named, allocation, network, deadline)
    for other in allocation.nodes:
        if other != allocation.node:
            for address in resolve_node(other, network, within_s=deadline - time.monotonic()).addresses:
                if (source := source_address(address)) in usable:
                    return source
    if len(allocation.nodes) == 1:
        return next(iter(sorted(usable)), "127.0.0.1")
    if not usable:
        raise AllocationError(
            f"{allocation.node} has no IPv4 address but that of the loopback interface, and agents need one to meet",
            tip="run on one node, or ask the administrator for addresses of IPv4 beside those of IPv6",
        )
    raise AllocationError(
        f"{allocation.node} has no address that the other nodes could use: its name resolves to none of "
        f"{', '.join(sorted(usable))}",
        tip="set network.interface in the site's file",
    )


def _best_connected(named: Sequence[str], allocation: Allocation, network: NetworkPlan, deadline: float) -> str:
    """Return the address from which most of the next nodes are reached; of equal ones the first."""
    count = len(allocation.nodes)
    after = [(allocation.node_id + step) % count for step in range(1, min(NEIGHBOURS, count - 1) + 1)]
    ways: dict[str, list[tuple[int, str]]] = {own: [] for own in named}
    for other in after:
        for address in resolve_node(allocation.nodes[other], network, within_s=deadline - time.monotonic()).addresses:
            if (own := source_address(address)) in ways:
                ways[own].append((other, address))
    addresses = {address for pairs in ways.values() for _, address in pairs}
    answering = find_answering(addresses, OTHER_PORTS, within_s=ANSWERS_WITHIN_S)
    return max(named, key=lambda own: len({other for other, address in ways[own] if address in answering}))


def source_address(destination: str) -> str:
    """Return the address from which this machine would send to the destination, "" if none; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


class PortTakenError(AllocationError):
    """Another process listens on that port. Exit code 3."""


def listen_on_first(address: str, ports: Sequence[int]) -> socket.socket:
    """Return a listening socket on the first of the ports that is free.

    Raises:
        AllocationError: none of the ports is free.
    """
    for port in ports:
        with contextlib.suppress(PortTakenError):
            return listen(address, port)
    raise AllocationError(
        f"none of {len(ports)} ports between {min(ports)} and {max(ports)} is free on {address or 'this node'}",
        tip="widen network.port_range in the site's file",
    )


def listen(address: str, port: int) -> socket.socket:
    """Return a listening TCP socket; port 0 means any free port."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(f"{address}:{port} is taken") from error
        raise AllocationError(f"cannot listen on {address}:{port}: {error.strerror}") from error
    listener.setblocking(False)
    return listener
