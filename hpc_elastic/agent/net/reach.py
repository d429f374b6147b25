"""Explains why a head cannot be reached: probes tell apart its port, its machine and the route to it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hpc_elastic.agent.net.transport import NoHandshakeError
from hpc_elastic.agent.node.answering import OTHER_PORTS
from hpc_elastic.errors import RendezvousCause
from hpc_elastic.membership.authentication import ProtocolError, WrongSecretError

PROBE_BOUND_S = 2.0
ANSWERS_WITHIN_S = 0.5  # a port of a machine that is there, if no packet is lost; a search waits for it
PROBE_AGAIN_S = 30.0


class Answer(str, Enum):
    """The outcome of a connection attempt."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the head is or, while no agent has claimed the allocation (`is_certain` is false), where it probably is."""

    head: str
    address: str
    port: int
    is_certain: bool

    def __str__(self) -> str:
        return f"{self.head} ({self.address})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The reason why this node has not joined a head yet; `detail` continues a sentence after this node's name."""

    cause: RendezvousCause
    detail: str
    head: str = ""
    address: str | None = None
    port: int | None = None


def not_resolved(head: str, error: str) -> Finding:
    """Return the finding that the head's name cannot be resolved, with the name server's error message."""
    return Finding(cause=RendezvousCause.CANNOT_RESOLVE, detail=f"cannot resolve {head}: {error}", head=head)


def not_answered(place: Place, what: str) -> Finding:
    """Return the finding that the head's port accepts a connection but nothing there answers as a head."""
    return _finding(RendezvousCause.SILENT, place, f"got no answer of {place} on port {place.port}: {what}")


async def explain(
    error: OSError | ProtocolError | NoHandshakeError,
    place: Place,
    port_range: Sequence[int],
    *,
    others: Sequence[int] = OTHER_PORTS,
    probe_bound_s: float = PROBE_BOUND_S,
) -> Finding:
    """Return why `dial` failed; may probe ports of the head's machine.

    Args:
        error: what `dial` raised.
        place: the address that was dialled.
        port_range: the site's port range, to name the ports that have to be opened.
        others: ports that show whether the machine answers at all.
        probe_bound_s: how long a probe of such a port waits for an answer, in seconds.
    """
    if isinstance(error, WrongSecretError) and place.is_certain:
        detail = (
            f"authenticated wrongly at {place}, port {place.port}: the file `secret` of the run is not the same there"
        )
        return _finding(RendezvousCause.WRONG_SECRET, place, detail)
    if isinstance(error, ProtocolError):
        return _refused(place, "another program listens there")
    if isinstance(error, NoHandshakeError):
        return not_answered(place, f"connected, but {error}")
    answer = answer_of(error)
    if answer is Answer.REFUSED:
        return _refused(place, "nobody listens there")
    what = error.strerror or str(error)
    if error.errno != errno.ENETUNREACH:
        port = await find_answering_port(place.address, others, timeout_s=probe_bound_s)
        # One lost packet is enough for a dial in vain, and no sign of a firewall.
        is_late = port is not None and answer is Answer.NOTHING
        again_s = min(ANSWERS_WITHIN_S, probe_bound_s)
        if is_late and await probe(place.address, place.port, timeout_s=again_s) is Answer.ACCEPTED:
            return not_answered(place, f"{what}, but it answers now: packets were lost, or the node was too busy")
        if port is not None:
            return _finding(RendezvousCause.BLOCKED_PORT, place, describe_blocked(place, what, port_range, port))
    detail = f"cannot route to {place}: {what}"
    if answer is Answer.NOTHING:
        detail += f", neither on port {place.port} nor on {' or '.join(map(str, others))}"
    return _finding(RendezvousCause.CANNOT_ROUTE, place, detail)


class Explainer:
    """Explains repeated failures to dial, and limits how often other ports are probed.

    A search dials every few seconds, on up to thousands of nodes at once; the daemons on the probed ports
    log each connection that sends nothing, and some block hosts that connect too often.

    Args:
        port_range: the site's port range, to name the ports that have to be opened.
        others: ports that show whether the machine answers at all.
    """

    def __init__(self, port_range: Sequence[int], *, others: Sequence[int] = OTHER_PORTS) -> None:
        self._port_range = port_range
        self._others = others
        self._failure: tuple[Place, str] | None = None
        self._finding: Finding | None = None
        self._holds_until = 0.0

    async def explain(self, error: OSError | ProtocolError | NoHandshakeError, place: Place, now: float) -> Finding:
        """Return what `explain` does, or for `PROBE_AGAIN_S` its earlier finding if the failure and place are the same.

        Args:
            error: what `dial` raised.
            place: the address that was dialled.
            now: monotonic seconds.
        """
        failure = (place, repr(error))
        if self._finding is None or failure != self._failure or now >= self._holds_until:
            self._finding = await explain(error, place, self._port_range, others=self._others)
            self._failure, self._holds_until = failure, now + PROBE_AGAIN_S
        return self._finding


def describe_blocked(place: Place, what: str, port_range: Sequence[int], answering: int | None = None) -> str:
    """Return the text about a port that something between the nodes, such as a firewall, blocks."""
    first, last = port_range
    but = f", but its port {answering} answers" if answering is not None else ""
    found = f"met a blocked port: {place} on port {place.port}: {what}{but}"
    return f"{found}; open network.port_range {first}-{last} between the nodes"


def answer_of(error: OSError) -> Answer:
    """Return the outcome of a failed connection attempt.

    If a firewall rejects with an ICMP message ("prohibited", as firewalld does), Linux reports no
    route to host, so `UNREACHABLE` does not yet mean that there is no route.
    """
    if isinstance(error, ConnectionRefusedError):
        return Answer.REFUSED
    return Answer.NOTHING if isinstance(error, TimeoutError) else Answer.UNREACHABLE


async def probe(address: str, port: int, *, timeout_s: float = PROBE_BOUND_S) -> Answer:
    """Connect to a port, close the connection, and return the outcome."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), timeout_s)
    except asyncio.TimeoutError:
        return Answer.NOTHING
    except OSError as error:
        return answer_of(error)
    writer.close()
    return Answer.ACCEPTED


async def find_answering_port(address: str, ports: Sequence[int], *, timeout_s: float = PROBE_BOUND_S) -> int | None:
    """Return the first of the ports on which the machine accepts or refuses a connection, None if there is none."""
    answers = await asyncio.gather(*(probe(address, port, timeout_s=timeout_s) for port in ports))
    heard = (Answer.ACCEPTED, Answer.REFUSED)
    return next((port for port, answer in zip(ports, answers, strict=True) if answer in heard), None)


def _refused(place: Place, why: str) -> Finding:
    return _finding(RendezvousCause.REFUSED, place, f"was refused by {place} on port {place.port}: {why}")


def _finding(cause: RendezvousCause, place: Place, detail: str) -> Finding:
    return Finding(cause=cause, detail=detail, head=place.head, address=place.address, port=place.port)
