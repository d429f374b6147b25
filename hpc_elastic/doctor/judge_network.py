"""Judges what the nodes found of each other: names, interfaces, ports, clocks and the files that they share; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hpc_elastic.doctor.probes.answers import (
    InterfacesSeen,
    LookupSeen,
    NamesSeen,
    PeersSeen,
    ProbeRequest,
)
from hpc_elastic.doctor.results import CheckResult, Severity, by_text
from hpc_elastic.doctor.told import NodeAnswers

SLOW_LOOKUP_S = 1.0
CLOCK_DIFFERS_S = 2.0  # as the agents report it
CLOCK_FAILS_S = 60.0
LATE_FILE_S = 3.0
MUCH_FASTER = 5
_FABRIC = ("ib", "hsn", "opa")


def judge_names(told: NodeAnswers) -> Iterator[CheckResult]:
    """Yield the nodes whose resolver does not answer, or slowly, or with an address that others cannot use."""
    seen = told.values("names", NamesSeen)
    if not seen:
        return
    failed = {node: text for node, each in seen.items() if (text := _unanswered(each.forward, own=node))}
    yield from _of_names(
        told, failed, Severity.FAIL, "an address for the name of every node", "mend the resolver of the node"
    )
    loops = {
        node: f"its own name is {each.found[0]}"
        for node, found in seen.items()
        for each in found.forward
        if each.asked == node and each.found and all(one.startswith("127.") for one in each.found)
    }
    yield from _of_names(
        told,
        loops,
        Severity.WARN,
        "an address that others can use",
        "name the interface: gloo and other programs may publish the loopback address",
        "network.interface",
    )
    slow = {
        node: f"{max(_times(each)):.1f} s for a name or an address"
        for node, each in seen.items()
        if node not in failed and max(_times(each), default=0.0) > SLOW_LOOKUP_S
    }
    yield from _of_names(told, slow, Severity.WARN, f"{SLOW_LOOKUP_S:g} s or less", "mend the resolver of the node", "")
    if not (failed or loops or slow):
        slowest = max((took for each in seen.values() for took in _times(each)), default=0.0)
        nameless = sorted({one.asked for each in seen.values() for one in each.reverse if one.error})
        back = f", but no name for {', '.join(nameless[:2])}" if nameless else " and back"
        found = f"{told.name(tuple(seen))}: to addresses{back}, in {1000 * slowest:.0f} ms at most"
        yield CheckResult(check="names", verdict=Severity.OK, found=found)


def _of_names(
    told: NodeAnswers,
    texts: Mapping[str, str],
    verdict: Severity,
    expected: str,
    action: str,
    key: str = "network.hostname_transform",
) -> Iterator[CheckResult]:
    for text, nodes in by_text(texts):
        yield CheckResult(
            check="names",
            verdict=verdict,
            found=f"{told.name(nodes)}: {text}",
            expected=expected,
            action=action,
            key=key,
            nodes=nodes,
        )


def _unanswered(forward: Sequence[LookupSeen], *, own: str) -> str:
    """Return which names have no address, and why; a node needs none for its own."""
    errors = Counter(each.error for each in forward if each.error and each.asked != own)
    if not errors:
        return ""
    error, _ = errors.most_common(1)[0]
    names = [each.asked for each in forward if each.error == error and each.asked != own]
    return f"cannot resolve {', '.join(names[:2])}{' ...' if len(names) > 2 else ''}: {error}"


def _times(seen: NamesSeen) -> list[float]:
    return [each.took_s for each in (*seen.forward, *seen.reverse)]


def judge_interfaces(told: NodeAnswers, request: ProbeRequest) -> Iterator[CheckResult]:
    """Yield the nodes whose interface is wrong, or slower than another that all have."""
    seen = told.values("interfaces", InterfacesSeen)
    if not seen:
        return
    wanted = request.network.interface
    problems = {node: each.problem for node, each in seen.items() if each.problem}
    advice = advise_interface(seen)
    for text, nodes in by_text(problems):
        yield CheckResult(
            check="interfaces",
            verdict=Severity.FAIL,
            found=f"{told.name(nodes)}: {text}",
            expected=f"{wanted or 'an interface'}, up and with an IPv4 address, on every node",
            action=f"name another: {advice}" if advice and advice != wanted else "mend it on these nodes",
            key="network.interface",
            nodes=nodes,
        )
    if problems:
        return
    used = by_text({node: each.interface or "?" for node, each in seen.items()})
    names = ", ".join(name for name, _ in used)
    is_one_machine = all(name == "lo" for name, _ in used)
    if wanted is None and advice and not is_one_machine and advice not in {name for name, _ in used}:
        yield CheckResult(
            check="interfaces",
            verdict=Severity.WARN,
            found=f"{told.name(tuple(seen))} would use {names}",
            expected=f"{advice}, which all nodes have and which is faster",
            action=f"name it: interface: {advice}, and nccl_socket_ifname: {advice}",
            key="network.interface",
        )
        return
    chosen = "as the site says" if wanted else "by which the nodes reach each other"
    yield CheckResult(check="interfaces", verdict=Severity.OK, found=f"{told.name(tuple(seen))}: {names}, {chosen}")


def advise_interface(seen: Mapping[str, InterfacesSeen]) -> str | None:
    """Return the interface to name: one that is up on every node, the fastest, else the one that routes; None if none.

    An interface of a fabric, whose speed the kernel does not say, counts as faster than one of Ethernet.
    """
    speeds: dict[str, list[float]] = {}
    for each in seen.values():
        for one in each.found:
            if one.is_up and not one.address.startswith("127."):
                fabric = 1e5 if one.name.startswith(_FABRIC) else 0.0
                speeds.setdefault(one.name, []).append(max(float(one.speed or 0), fabric))
    common = {name: min(found) for name, found in speeds.items() if len(found) == len(seen)}
    routing = Counter(interface for each in seen.values() for interface in each.routes.values())
    usual = next((name for name, _ in routing.most_common() if name in common), None)
    if usual is None:
        return max(common, key=lambda name: common[name], default=None)
    faster = [name for name in common if common[name] >= MUCH_FASTER * max(common[usual], 1000.0)]
    return max(faster, key=lambda name: common[name], default=usual)


def judge_peers(told: NodeAnswers, request: ProbeRequest) -> Iterator[CheckResult]:
    """Yield which nodes cannot be reached, whose clock differs, and what is wrong with the folder that all share."""
    seen = told.values("peers", PeersSeen)
    if len(told.nodes) > 1:
        yield from _judge_ports(told, seen, request)
    yield from _judge_clocks(told, seen)
    yield from _judge_sharing(told, seen)


def _judge_ports(told: NodeAnswers, seen: Mapping[str, PeersSeen], request: ProbeRequest) -> Iterator[CheckResult]:
    first, last = request.network.port_range
    failed: dict[str, dict[str, str]] = {}  # by the node that was not reached: who tried, and why not
    causes: dict[str, str] = {}
    unnamed = {node for node, each in told.values("names", NamesSeen).items() if _unanswered(each.forward, own=node)}
    for node, each in seen.items():
        for contact in each.contacts:
            if contact.cause == "cannot_resolve" and node in unnamed:
                continue  # a line about names says so
            if contact.problem:
                failed.setdefault(contact.peer, {})[node] = contact.problem
                causes[contact.peer] = contact.cause
    silent = {node for node in told.nodes if node not in told.of("start")}
    for peer, whys in failed.items():
        if peer in silent:  # a line of its own says that it gave no answer
            continue
        is_blocked = causes[peer] == "blocked_port"
        text, _ = by_text(whys)[0]
        yield CheckResult(
            check="ports",
            verdict=Severity.FAIL,
            found=f"{told.name(tuple(whys))} {text.partition('; open ')[0]}",
            expected=f"TCP between all nodes on ports {first} to {last}",
            action=f"open {first}-{last} between the nodes, or name ports that are open" if is_blocked else _DO_ROUTE,
            key="network.port_range" if is_blocked else "network.interface",
            nodes=(peer,),
        )
    contacts = [contact for each in seen.values() for contact in each.contacts]
    if contacts and not failed:
        ways = by_text({f"{number}": contact.interface or "?" for number, contact in enumerate(contacts)})
        ports = sorted({each.port for each in seen.values()})
        shown = ", ".join(map(str, ports[:3])) + (" ..." if len(ports) > 3 else "")
        found = f"{len(contacts)} connections by {', '.join(name for name, _ in ways)} to port {shown}"
        yield CheckResult(check="ports", verdict=Severity.OK, found=found)


_DO_ROUTE = "look at the route between the two, and at the interface"


def _judge_clocks(told: NodeAnswers, seen: Mapping[str, PeersSeen]) -> Iterator[CheckResult]:
    """Yield the nodes whose clock is not the head's, nor that of the machine that asks."""
    head = told.nodes[0] if told.nodes else ""
    offsets = {node: each.offset_s for node, each in seen.items() if each.offset_s is not None}
    # Most nodes agree: if nearly all differ from the head in the same way, it is the head that is wrong.
    rounded = by_text({node: str(round(offset / CLOCK_DIFFERS_S)) for node, offset in {head: 0.0, **offsets}.items()})
    wrong: dict[str, tuple[float, str]] = {}
    if rounded and head not in rounded[0][1] and len(rounded[0][1]) > 1:
        usual = sorted(offsets[node] for node in rounded[0][1])[0]
        offsets = {head: -usual, **{node: offset - usual for node, offset in offsets.items()}}
    for node, offset in offsets.items():
        if abs(offset) >= CLOCK_DIFFERS_S:
            wrong[node] = (offset, "the others'")
    for node, start in told.of("start").items():
        if node in wrong:
            continue
        if start.answered < told.sent - CLOCK_DIFFERS_S:
            wrong[node] = (start.answered - told.sent, "this machine's, at least")
        elif start.answered > told.read.get(node, start.answered) + CLOCK_DIFFERS_S:
            wrong[node] = (start.answered - told.read[node], "this machine's, at least")
    for node, (offset, whose) in wrong.items():
        yield CheckResult(
            check="clocks",
            verdict=Severity.FAIL if abs(offset) >= CLOCK_FAILS_S else Severity.WARN,
            found=f"{node}: {_duration(abs(offset))} {'ahead of' if offset > 0 else 'behind'} {whose}",
            expected=f"less than {CLOCK_DIFFERS_S:g} s between nodes",
            action="start chronyd or ntpd there: times in logs and records of this node are wrong",
            nodes=(node,),
        )
    if not wrong and told.nodes:
        most = max((abs(offset) for offset in offsets.values()), default=None)
        found = "compared with this machine's" if most is None else f"{1000 * most:.0f} ms apart at most"
        yield CheckResult(check="clocks", verdict=Severity.OK, found=f"{told.name(told.nodes)}: {found}")


def _judge_sharing(told: NodeAnswers, seen: Mapping[str, PeersSeen]) -> Iterator[CheckResult]:
    late = {
        node: each.visible_problem or f"seen {each.visible_s:.1f} s after it was written"
        for node, each in seen.items()
        if each.visible_problem or (each.visible_s or 0.0) > LATE_FILE_S
    }
    for text, nodes in by_text(late):
        is_slow = text.startswith("seen ")
        yield CheckResult(
            check="shared files",
            verdict=Severity.WARN if is_slow else Severity.FAIL,
            found=f"{told.name(nodes)}: {text}",
            expected=f"a file of the head within {LATE_FILE_S:g} s",
            action="name a folder that all nodes share" if not is_slow else "shorten acregmax of the NFS mount",
            key="run_root",
            nodes=nodes,
        )
    won = Counter(number for each in seen.values() for number in each.created)
    twice = tuple(node for node, each in seen.items() if any(won[number] > 1 for number in each.created))
    if twice:
        yield CheckResult(
            check="shared files",
            verdict=Severity.FAIL,
            found=f"{told.name(twice)}: the same file was created exclusively by several of them",
            expected="O_EXCL of one node keeps out the others",
            action="name a folder that all nodes share, on a file system with exclusive create",
            key="run_root",
            nodes=twice,
        )
    measured = [each.visible_s for each in seen.values() if each.visible_s is not None]
    if measured and not late and not twice:
        found = f"a file of the head is seen after {1000 * max(measured):.0f} ms at most"
        if any(each.needs_listing for each in seen.values()):
            found += ", once the folder is listed"
        yield CheckResult(check="shared files", verdict=Severity.OK, found=f"{found}; exclusive create holds")


def _duration(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.1f} s"
