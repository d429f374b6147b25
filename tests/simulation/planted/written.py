"""Machines and drivers with a bug each in what records say or what a head leaves undone, which rules must find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hpc_elastic.agent.drivers.coordinator import Coordinator
from hpc_elastic.agent.drivers.head_side import HeadSide
from hpc_elastic.agent.records import journal
from hpc_elastic.agent.rendezvous import successor
from hpc_elastic.agent.rendezvous.head_link import HeadLink, HeadListener
from hpc_elastic.membership import admission, discovery, judge, succession
from hpc_elastic.membership.discovery import HeadDiscovery
from hpc_elastic.membership.job_end import JobEnd
from hpc_elastic.membership.judge import Judge
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Join
from tests.simulation.disk import LAYOUT
from tests.simulation.plant import Plant


def _without_pids(started: Callable[..., Any]) -> Callable[..., Any]:
    return lambda member, attempt, pids: started(member, attempt, {})


def _keep(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda head, connection, why: None


def _at_once(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda head, why: head.over.set()


def _in_a_low_voice(claiming: Callable[..., Any]) -> Callable[..., Any]:
    def claim(side: HeadSide) -> None:
        claiming(side)
        side._journal.is_head = False

    return claim


def _in_a_row(_: Callable[..., Any]) -> Callable[..., Any]:
    return list


def _with_its_name_twice(cause_in: Callable[..., Any]) -> Callable[..., Any]:
    def twice(*arguments: Any) -> Any:
        cause = cause_in(*arguments)
        return cause if cause is None or not cause.node else replace(cause, nodes=(cause.node,))

    return twice


def _of_nobody(stopped: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **known: stopped(**{**known, "waiting": ()})


def _for_long(_: float) -> float:
    return 0.2


def _with_a_long_first(pauses_s: tuple[float, ...]) -> tuple[float, ...]:
    return (0.2, *pauses_s[1:])


def _unless_silent(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda search, turns, now: [node for node in turns if node not in search._silent]


def _as_if_they_had_answered(not_answered: Callable[..., Any]) -> Callable[..., Any]:
    return lambda search, now, **how: not_answered(search, now, **{**how, "is_silent": False})


def _lost_all_the_same(joined: Callable[..., Any]) -> Callable[..., Any]:
    def join(job_end: JobEnd, message: Join) -> None:
        was_lost = job_end._is_lost
        joined(job_end, message)
        job_end._is_lost = was_lost

    return join


def _no_exit_code(write: Callable[..., Any]) -> Callable[..., Any]:
    return lambda path, content, **how: None if path == LAYOUT.exit_code else write(path, content, **how)


def _keeps_it(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda connection, why: None


def _waits(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda side, connection, message: side._answering and side._answering.received(connection, message)


def _as_if_refused(init: Callable[..., Any]) -> Callable[..., Any]:
    def made(link: HeadLink, listener: HeadListener) -> None:
        init(link, listener)
        link.is_refused = True

    return made


def _never(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda judge, now: False


# By name: where it is, what it does instead, the kind of scenario that shows it, and words of the rule that it breaks.
WRITTEN_BUGS: Mapping[str, tuple[Any, str, Callable[..., Any], str, str]] = {
    "process ids are forgotten": (Member, "workers_started", _without_pids, "failures", "process ids"),
    "a dropped member keeps its connection": (Coordinator, "_hang_up", _keep, "foretold", "keeps its connection"),
    "a head leaves before its members": (Coordinator, "own_member_left", _at_once, "foretold", "have not left"),
    "nobody reads the lines of a head": (HeadSide, "_claiming", _in_a_low_voice, "failures", "its own log alone"),
    "a cause names its node twice": (judge, "_cause_in", _with_its_name_twice, "foretold", "names the node"),
    "ranks that wait are taken for those that hang": (judge, "StoppedRanks", _of_nobody, "timeouts", "all waited for"),
    "the first pause of a search is long": (discovery, "DIAL_PAUSES_S", _with_a_long_first, "spares", "again after"),
    "a silent node is not asked again": (HeadDiscovery, "_near", _unless_silent, "flapping", "not once meanwhile"),
    "all silent nodes are asked in each round": (
        HeadDiscovery,
        "not_answered",
        _as_if_they_had_answered,
        "spares",
        "gave no answer, before",
    ),
    "a batch host that joins stays lost": (JobEnd, "joined", _lost_all_the_same, "spares", "end the job, and"),
    "the script is not told the exit code": (journal, "write_bytes", _no_exit_code, "any", "the script is told"),
    "a slow message is taken for another clock": (admission, "CLOCKS_DIFFER_S", _for_long, "any", "clock_differs"),
    "nodes that are back are too few": (Judge, "resumes", _never, "saves", "are with it"),
    "a head that answers too late is kept": (successor, "_decline", _keeps_it, "slow-heads", "a connection to one"),
    "who looks for a head is kept waiting": (HeadSide, "received", _waits, "closings", "of who looks for one"),
    "a silent head counts as gone": (HeadLink, "__init__", _as_if_refused, "spares", "which lives"),
    "nodes of a rack have turns in a row": (succession, "order_of_succession", _in_a_row, "roles", "names the turns"),
}


class PlantedWritten(Plant):
    """A package that has this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = WRITTEN_BUGS[bug]

    def places(self) -> list[tuple[Any, str, Any]]:
        owner, name, make, _, _ = self._bug
        return [(owner, name, make(getattr(owner, name)))]
