"""Meets the other nodes: looks up their names, connects to their ports, compares clocks and the shared file system.

Theory of operation. Each node listens on the first free port of the sequence from which agents draw theirs, writes its
address into the shared folder, and connects to the head (node 0) and to the next `NEIGHBOURS` nodes, so that the port
of every node is tried from several others. Where a node's file is not to be seen, its name and the same sequence say
where to look. It keeps listening until all that should come have left, or `MEETING_S` has passed and nobody is
connected: a node that left at once would look like one whose port is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from hpc_elastic.agent.health.node import find_interface_problem
from hpc_elastic.agent.net.reach import Place, describe_blocked, explain
from hpc_elastic.agent.node import network
from hpc_elastic.doctor.node.listener import DISK_S, ProbeListener, ask
from hpc_elastic.doctor.probes.answers import (
    Contact,
    InterfaceSeen,
    InterfacesSeen,
    LookupSeen,
    NamesSeen,
    PeersSeen,
    ProbeRequest,
)
from hpc_elastic.doctor.probes.bounded import LateError, answer_within
from hpc_elastic.errors import AllocationError, RendezvousCause
from hpc_elastic.membership.ports import port_sequence
from hpc_elastic.plan.launch_plan import NetworkPlan
from hpc_elastic.scheduler.allocation import Allocation

NEIGHBOURS = 3
MEETING_S = 20.0
CONNECT_S = 2.5
AGAIN_AFTER_S = 0.25
LOOKUP_S = 4.0  # as agents wait for a name
VISIBLE_S = 15.0  # for a file that another node has written
LISTING_AFTER_S = 2.0
SHARED_FILES = 8
_PORTS_TRIED = 3
T = TypeVar("T")
_MOST_IN_VAIN = 4  # tries to reach a node that has said where it listens
_ROUNDS = 3  # exchanges of clocks, of which the quickest counts


class Neighbourhood:
    """This node's view of the others.

    Args:
        request: what is to be tried.
        place: this node's place among them.
        meeting_s: how long each tries to reach the others, and waits for them.
    """

    def __init__(self, request: ProbeRequest, place: Allocation, *, meeting_s: float = MEETING_S) -> None:
        self._meeting_s = meeting_s
        self._request = request
        self._place = place
        self._ports = port_sequence(request.run, f"doctor-{place.job_id}", request.network.port_range)
        self._addresses: dict[int, str] = {}
        self._looking_up = threading.Lock()
        self._looked_up: dict[int, LookupSeen] = {}

    @property
    def spare_port(self) -> int:
        """A port of the sequence on which nobody here listens: the head's, for the sum over all nodes."""
        return self._ports[-1]

    @property
    def head_address(self) -> str:
        """The address at which the head was reached; empty if it was not."""
        return self._addresses.get(0, "")

    def see_names(self) -> NamesSeen:
        """Return what the resolver answers for this node, the head and the neighbours, each within a time limit."""
        forward = list(self._lookups().values())
        addresses = dict.fromkeys(found for each in forward for found in each.found)
        reverse = _at_once([partial(_look_back, address) for address in list(addresses)[: NEIGHBOURS + 2]])
        return NamesSeen(forward=tuple(forward), reverse=tuple(reverse))

    def see_interfaces(self) -> InterfacesSeen:
        """Return the interfaces of this node, the address that its agent would publish, and the routes to others."""
        address, problem = self._own_address()
        routes = {}
        for peer, lookup in {} if self._place.is_local else self._lookups().items():
            for found in lookup.found[:1] if peer != self._place.node_id else ():
                if interface := network.interface_of(network.source_address(found)):
                    routes[lookup.asked] = interface
        return InterfacesSeen(
            found=tuple(_see_interface(name, held) for name, held in network.interface_addresses()),
            problem=problem,
            address=address,
            interface=network.interface_of(address) if address else None,
            routes=routes,
        )

    def meet(self) -> PeersSeen:
        """Return what came of meeting the others.

        Raises:
            AllocationError: no port of the range is free here.
        """
        until = time.monotonic() + self._meeting_s
        address, _ = self._own_address()
        listener = network.listen_on_first(address if self._place.is_local else "", self._ports[:-1])
        port = listener.getsockname()[1]
        answers = ProbeListener(listener, folder=self._request.folder, nodes=len(self._place.nodes))
        self._publish(address, port)
        contacts = tuple(_at_once([partial(self._try_contact, peer, until) for peer in self._peers()]))
        seen = self._compare(contacts)
        created, create_problem = self._create()
        answers.wait_until_left(self._visitors(), until)
        return PeersSeen(
            head=self._place.nodes[0],
            address=address,
            port=port,
            contacts=contacts,
            created=created,
            create_problem=create_problem,
            **seen,
        )

    def _peers(self) -> list[int]:
        count, own = len(self._place.nodes), self._place.node_id
        ring = [(own + step) % count for step in range(1, NEIGHBOURS + 1)]
        return [each for each in dict.fromkeys([0, *ring]) if each != own]

    def _visitors(self) -> set[int]:
        count, own = len(self._place.nodes), self._place.node_id
        if own == 0:
            return set(range(1, count))
        return {(own - step) % count for step in range(1, NEIGHBOURS + 1)} - {own}

    def _own_address(self) -> tuple[str, str | None]:
        """Return the address that the agent would publish, and why the site's interface cannot be used."""
        plan = self._request.network
        problem = None if self._place.is_local else find_interface_problem(plan)
        with contextlib.suppress(AllocationError):
            return network.own_address(self._place, plan), problem
        without = NetworkPlan(hostname_transform=plan.hostname_transform, port_range=plan.port_range)
        try:
            return network.own_address(self._place, without), problem
        except AllocationError as error:
            return "", problem or error.message

    def _lookups(self) -> dict[int, LookupSeen]:
        """Return what the resolver says of this node, the head and the neighbours; all are asked once, at once."""
        with self._looking_up:
            if not self._looked_up:
                wanted = [self._place.node_id, *self._peers()]
                found = _at_once([partial(self._look_up, self._place.nodes[each]) for each in wanted])
                self._looked_up = dict(zip(wanted, found, strict=True))
            return self._looked_up

    def _look_up(self, name: str) -> LookupSeen:
        began = time.monotonic()
        found = network.resolve_node(name, self._request.network, within_s=LOOKUP_S)
        took_s = round(time.monotonic() - began, 3)
        return LookupSeen(asked=name, found=found.addresses, error=found.error, took_s=took_s)

    def _publish(self, address: str, port: int) -> None:
        path = os.path.join(self._request.folder, f"place-{self._place.node_id}")

        def write() -> None:
            with open(f"{path}.tmp", "w", encoding="ascii") as file:
                json.dump([address, port], file)
            os.replace(f"{path}.tmp", path)

        with contextlib.suppress(OSError, LateError):  # the check of the run root says so
            answer_within(write, DISK_S)

    def _read_place(self, peer: int) -> tuple[str, int] | None:
        def read() -> tuple[str, int] | None:
            with open(os.path.join(self._request.folder, f"place-{peer}"), encoding="ascii") as file:
                address, port = json.load(file)
            return (str(address), int(port)) if address else None

        try:
            return answer_within(read, DISK_S)
        except (OSError, ValueError, LateError):
            return None

    def _try_contact(self, peer: int, until: float) -> Contact:
        try:
            return self._contact(peer, until)
        except Exception as error:  # one node that cannot be tried must not hide the others
            return Contact(peer=self._place.nodes[peer], problem=f"could not try {type(error).__name__}: {error}")

    def _contact(self, peer: int, until: float) -> Contact:
        """Connect to a node until it answers or the time is over; return how that went the last time."""
        began, name = time.monotonic(), self._place.nodes[peer]
        last: tuple[OSError, str, int] | None = None
        in_vain = 0
        while True:
            written = self._read_place(peer)
            places, unknown = ([written], "") if written is not None else self._guess_places(peer)
            for address, port in places:
                try:
                    with socket.create_connection((address, port), timeout=CONNECT_S) as connection:
                        source = connection.getsockname()[0]
                        # From the head nobody takes leave before clocks and files are compared.
                        ask(connection, f"met {self._place.node_id}" if peer else "clock")
                except OSError as error:
                    last = (error, address, port)
                    continue
                self._addresses[peer] = address
                return Contact(
                    peer=name,
                    address=address,
                    port=port,
                    source=source,
                    interface=network.interface_of(source),
                    took_s=round(time.monotonic() - began, 3),
                )
            in_vain += written is not None  # it has said that it listens
            if in_vain == _MOST_IN_VAIN or time.monotonic() + AGAIN_AFTER_S > until:
                return self._failed(name, last, unknown, began, is_listening=written is not None)
            _pause(AGAIN_AFTER_S)

    def _guess_places(self, peer: int) -> tuple[list[tuple[str, int]], str]:
        """Return where a node may listen whose file is not to be seen, and why its name has no address."""
        ports = self._ports[:_PORTS_TRIED]
        if self._place.is_local:
            return [(self._place.local_address(peer), port) for port in ports], ""
        looked_up = self._lookups()[peer]
        return [(address, port) for address in looked_up.found[:2] for port in ports], looked_up.error

    def _failed(
        self,
        name: str,
        last: tuple[OSError, str, int] | None,
        unknown: str,
        began: float,
        *,
        is_listening: bool,
    ) -> Contact:
        took_s = round(time.monotonic() - began, 3)
        if last is None:
            problem = f"cannot resolve {name}: {unknown or 'no address'}"
            return Contact(peer=name, problem=problem, cause=RendezvousCause.CANNOT_RESOLVE.value, took_s=took_s)
        error, address, port = last
        place = Place(head=name, address=address, port=port, is_certain=True)
        ports = self._request.network.port_range
        found = asyncio.run(explain(error, place, ports))
        problem, cause = found.detail, found.cause
        if is_listening and cause is RendezvousCause.REFUSED:  # by something else than that node
            problem = describe_blocked(place, f"refused, although {name} listens there", ports)
            cause = RendezvousCause.BLOCKED_PORT
        source = network.source_address(address)
        return Contact(
            peer=name,
            address=address,
            port=port,
            source=source,
            interface=network.interface_of(source) if source else None,
            problem=problem,
            cause=cause.value,
            took_s=took_s,
        )

    def _compare(self, contacts: tuple[Contact, ...]) -> dict[str, Any]:
        """Return what a connection to the head tells: the clocks, and how soon a file that it writes is seen here."""
        head = next((each for each in contacts if each.peer == self._place.nodes[0] and not each.problem), None)
        if self._place.node_id == 0 or head is None:
            return {}
        seen: dict[str, Any] = {}
        try:
            with socket.create_connection((head.address, head.port), timeout=CONNECT_S) as connection:
                connection.settimeout(VISIBLE_S)
                exchanges = []
                for _ in range(_ROUNDS):
                    sent, began = time.time(), time.monotonic()
                    at_head = float(ask(connection, "clock"))
                    round_trip = time.monotonic() - began
                    exchanges.append((round_trip, sent + round_trip / 2 - at_head))
                round_trip, offset = min(exchanges)
                seen |= {"offset_s": round(offset, 4), "round_trip_s": round(round_trip, 4)}
                seen |= self._wait_for_file(connection)
                ask(connection, f"met {self._place.node_id}")
        except (OSError, ValueError) as error:
            seen["visible_problem"] = f"the head did not answer: {error}"
        except LateError as late:
            seen["visible_problem"] = str(late)
        return seen

    def _wait_for_file(self, connection: socket.socket) -> dict[str, Any]:
        """Have the head write a file for this node, and wait until it is to be seen here.

        This node has looked for it before, as agents look for records that are not there yet: an NFS client
        remembers for up to a minute that a name was missing, unless it lists the folder.
        """
        path = os.path.join(self._request.folder, f"shown-{self._place.node_id}")
        answer_within(lambda: os.path.exists(path), DISK_S)
        word = ask(connection, f"show {self._place.node_id}")
        if word != "written":
            return {"visible_problem": f"the head could not write a file: {word}"}
        began = time.monotonic()

        def look() -> tuple[bool, bool]:
            is_listed = False
            while not os.path.exists(path):
                waited = time.monotonic() - began
                if waited > VISIBLE_S:
                    return False, is_listed
                if waited > LISTING_AFTER_S:
                    os.listdir(self._request.folder)
                    is_listed = True
                _pause(0.01)
            return True, is_listed

        is_seen, is_listed = answer_within(look, VISIBLE_S + DISK_S)
        if not is_seen:
            return {"visible_problem": f"a file that the head had written was not seen within {VISIBLE_S:g} s"}
        return {"visible_s": round(time.monotonic() - began, 3), "needs_listing": is_listed}

    def _create(self) -> tuple[tuple[int, ...], str]:
        """Try to be the one that creates each of some files, and return which of them this node created."""

        def create(number: int) -> bool:
            path = os.path.join(self._request.folder, f"exclusive-{number}")
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                return False
            return True

        try:
            return answer_within(lambda: tuple(each for each in range(SHARED_FILES) if create(each)), DISK_S), ""
        except OSError as error:
            return (), error.strerror or str(error)
        except LateError as late:
            return (), str(late)


def _look_back(address: str) -> LookupSeen:
    began = time.monotonic()
    found: tuple[str, ...] = ()
    error = ""
    try:
        found = (answer_within(lambda: socket.gethostbyaddr(address)[0], LOOKUP_S),)
    except OSError as refused:
        error = refused.strerror or str(refused)
    except LateError as late:
        error = f"{late} of the name server"
    return LookupSeen(asked=address, found=found, error=error, took_s=round(time.monotonic() - began, 3))


def _see_interface(name: str, address: str) -> InterfaceSeen:
    def read(what: str) -> str:
        with contextlib.suppress(OSError), open(f"/sys/class/net/{name}/{what}", encoding="ascii") as file:
            return file.read().strip()
        return ""

    speed = read("speed")
    is_up = read("operstate") in ("up", "unknown", "dormant", "")
    return InterfaceSeen(name=name, address=address, is_up=is_up, speed=int(speed) if speed.isdigit() else None)


def _at_once(functions: Sequence[Callable[[], T]]) -> list[T]:
    """Return what some functions return, each run in a thread of its own; all of them have bounds of their own."""
    if not functions:
        return []
    with ThreadPoolExecutor(max_workers=len(functions)) as threads:
        return list(threads.map(lambda function: function(), functions))


def _pause(seconds: float) -> None:
    """Wait on a lock: `time.sleep` asks for a moment of the monotonic clock, which libfaketime gets wrong."""
    threading.Event().wait(seconds)
