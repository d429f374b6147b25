"""Which faults may be placed at a decision point of a simulated run: each that has something to happen to there.

A fault lasts, for each way in which that matters, once: as long as one operation, longer than a lease, longer than
a succession takes, for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from tests.simulation.faults import DISK_MANNERS
from tests.simulation.scenario import POINT, Fault

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

PAST_LEASE, PAST_SUCCESSION, WITHIN_LEASE = 1.4, 3.5, 0.6  # leases
FOREVER_S = 10_000.0
ONE_OPERATION_S = 0.002  # of the run directory: shorter than a question to its server takes
LATER_S = 0.1  # than a message, a turn and a piece of work on the run directory take together
KINDS = ("crash", "cut", "route", "pause", "disk", "start", "end", "late")


def placements(run: SimulatedRun, point: int, kinds: tuple[str, ...] = KINDS) -> Iterator[Fault]:
    """All faults of these kinds that can strike a run where it stands, at this point."""
    makers = {
        "crash": _crashes,
        "cut": _cuts,
        "route": _routes,
        "pause": _pauses,
        "disk": _disks,
        "start": _second_starts,
        "end": _ends,
        "late": _late,
    }
    yield from chain.from_iterable(makers[kind](run, point) for kind in kinds)


def _present(run: SimulatedRun) -> Iterator[tuple[Agent, bool]]:
    """Each agent that runs, and whether it is of the start before."""
    for agent in run.everybody:
        if agent.is_running:
            yield agent, bool(run.earlier) and agent.start_number == 0


def _crashes(run: SimulatedRun, point: int) -> Iterator[Fault]:
    for agent, is_old in _present(run):
        yield Fault(what="kill_agent", node=agent.number, is_old=is_old, phase=POINT, nth=point)
        if not run.earlier:  # two agents would have to lose it together
            yield Fault(what="power_off", node=agent.number, phase=POINT, nth=point)
        if agent.link is not None:
            yield Fault(what="reset", node=agent.number, is_old=is_old, phase=POINT, nth=point)
        if agent.workers.alive:
            yield Fault(what="kill_worker", node=agent.number, is_old=is_old, phase=POINT, nth=point)


def _cuts(run: SimulatedRun, point: int) -> Iterator[Fault]:
    for number in range(run.scenario.nodes):
        for way in ("both", "in", "out"):
            for lasts_s in (PAST_LEASE * run.scenario.lease_s, FOREVER_S):
                yield Fault(what="one_way", side=(number,), way=way, lasts_s=lasts_s, phase=POINT, nth=point)
    if run.network.closed:
        yield Fault(what="heal", phase=POINT, nth=point)


def _routes(run: SimulatedRun, point: int) -> Iterator[Fault]:
    """As a cut, but a kernel learns of it at once."""
    for number in range(run.scenario.nodes):
        for lasts_s in (PAST_LEASE * run.scenario.lease_s, FOREVER_S):
            yield Fault(what="unreachable", side=(number,), lasts_s=lasts_s, phase=POINT, nth=point)


def _pauses(run: SimulatedRun, point: int) -> Iterator[Fault]:
    for agent, is_old in _present(run):
        for leases in (PAST_LEASE, PAST_SUCCESSION):
            lasts_s = leases * run.scenario.lease_s
            if is_old and _is_alone(agent):
                lasts_s = WITHIN_LEASE * run.scenario.lease_s
            where = {"node": agent.number, "is_old": is_old, "lasts_s": lasts_s, "phase": POINT, "nth": point}
            yield Fault(what="pause", **where)  # type: ignore[arg-type]
            yield Fault(what="freeze", **where)  # type: ignore[arg-type]


def _is_alone(agent: Agent) -> bool:
    """Whether it is a head without members, to which nobody sends beats: nothing fences it if it is frozen."""
    assign = agent.workers.assign
    return agent.headquarters is not None and assign is not None and assign.group_world_size == 1


def _disks(run: SimulatedRun, point: int) -> Iterator[Fault]:
    for agent, is_old in _present(run):
        for what in DISK_MANNERS:
            for lasts_s in (ONE_OPERATION_S, PAST_LEASE * run.scenario.lease_s):
                is_of_one = lasts_s == ONE_OPERATION_S
                if is_of_one and not agent.disk.stage:
                    continue  # no question is on its way
                yield Fault(what=what, node=agent.number, is_old=is_old, lasts_s=lasts_s, phase=POINT, nth=point)


def _second_starts(run: SimulatedRun, point: int) -> Iterator[Fault]:
    if run.earlier or not run.are_all_started:
        return
    everybody = tuple(range(run.scenario.nodes))
    head = next((agent.number for agent in run.agents if agent.headquarters is not None), 0)
    for side in (everybody, (), (head,), tuple(number for number in everybody if number != head)):
        yield Fault(what="requeue", side=side, phase=POINT, nth=point)


def _ends(run: SimulatedRun, point: int) -> Iterator[Fault]:
    if not run.is_stop_requested:
        yield Fault(what="stop", phase=POINT, nth=point)
    for agent in run.agents:
        if agent.is_running and agent.name not in run.witness.terminated:
            yield Fault(what="term", node=agent.number, phase=POINT, nth=point)


def _late(run: SimulatedRun, point: int) -> Iterator[Fault]:
    yield Fault(what="late", lasts_s=LATER_S, phase=POINT, nth=point)
