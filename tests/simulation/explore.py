"""`python -m tests.simulation.explore`: every placement of up to K faults in a run of 3 nodes and 2 starts of the job.

Theory of operation. Stateless model checking: a schedule is a list of faults, each at a decision point (`points`), and
to follow a schedule is to play the run again, with the drivers as they ship. First the run without a fault is played.
At each of its points whose state (`points.state`) was at no point before, every fault that has something to strike
there (`placements`) is placed, which gives the schedules of one fault. A run with n faults is looked at in the same
way from its last fault on, until K are placed. The rules of the simulation hold in every run.

The second start of the job is a fault like any other. So is an event that comes later than others, which is how other
orders of events come about (delay-bounded scheduling: each delay is one of the K).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.simulation.garbage import collect_rarely
from tests.simulation.placements import KINDS, placements
from tests.simulation.plant import Plant
from tests.simulation.points import outline, state
from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun

LEASE_S = 3.0
STARTS_AGAIN_AT_S = 4.0  # in the middle of the attempt
SAYS_EVERY_S = 30.0
FINE = 1 / 12  # leases: what tells two states apart


def base(least: int = 1, nodes: int = 3, *, starts: int = 1) -> Scenario:
    """The run in which faults are placed: it needs `least` of its nodes, and its work outlasts a succession.

    With two starts the job starts again while its workers run, and every agent of the first start lives on.
    """
    role = Role(name="trainer", restart="restart_all", nodes_min=least, nodes_max=nodes, workers=(1,), work_s=9.0)
    again = (Fault(what="requeue", side=tuple(range(nodes)), at=STARTS_AGAIN_AT_S),) if starts == 2 else ()
    return Scenario(seed=1, roles=(role,), nodes=nodes, lease_s=LEASE_S, join_timeout_s=20.0, faults=again)


@dataclass(kw_only=True)
class Broken:
    """A schedule that breaks a rule."""

    scenario: Scenario
    why: str


@dataclass
class Exploration:
    """All schedules of a base scenario with up to `depth` faults of these kinds.

    Args:
        scenario: the base; its own faults stand for themselves.
        depth: how many faults are placed.
        kinds: of which kinds (`placements.KINDS`).
        grain: what tells two times of a state apart, in leases; None: states are told apart by their outline.
        first: the first point at which a fault is placed.
        plant: other machines than those that ship.
        until: a moment by the monotonic clock, after which nothing is played any more.
    """

    scenario: Scenario
    depth: int = 1
    kinds: tuple[str, ...] = KINDS
    grain: float | None = FINE
    first: int = 1
    plant: Plant | None = None
    until: float = float("inf")
    runs: Counter[int] = field(default_factory=Counter)  # by how many faults were placed
    ends: Counter[str] = field(default_factory=Counter)
    points: int = 0
    waiting: int = 0  # schedules that are known and not played yet
    broken: list[Broken] = field(default_factory=list)
    _seen: set[Hashable] = field(default_factory=set)

    @property
    def states(self) -> int:
        """How many different states it placed faults in."""
        return len(self._seen)

    @property
    def is_complete(self) -> bool:
        """Whether everything was played."""
        return bool(self.runs) and not self.waiting

    def schedules(self) -> Iterator[SimulatedRun]:
        """Plays all, those with fewer faults first, and gives each run that is over."""
        waiting = deque([self.scenario])
        while waiting:
            self.waiting = len(waiting)
            if time.monotonic() > self.until:
                return
            scenario = waiting.popleft()
            run, more = self._play(scenario)
            waiting.extend(replace(scenario, faults=(*scenario.faults, fault)) for fault in more)
            self.waiting = len(waiting)
            yield run

    def play(self) -> None:
        """Plays all of them."""
        for _ in self.schedules():
            pass

    def _play(self, scenario: Scenario) -> tuple[SimulatedRun, list[Fault]]:
        placed = scenario.faults[len(self.scenario.faults) :]
        more: list[Fault] = []
        first = placed[-1].nth if placed else self.first

        def visit(point: int, kind: str) -> None:
            if point < first:
                return
            self.points += 1
            where = outline(run) if self.grain is None else (kind, state(run, self.grain * scenario.lease_s))
            if where not in self._seen:
                self._seen.add(where)
                more.extend(placements(run, point, self.kinds))

        run = SimulatedRun(scenario, self.plant, visit if len(placed) < self.depth else None)
        self.runs[len(placed)] += 1
        try:
            run.play()
        except Exception as error:  # of a machine, too
            self.broken.append(Broken(scenario=scenario, why=f"{type(error).__name__}: {error}"))
        else:
            self.ends[run.disk.results[0].reason if run.disk.results else "no result"] += 1
        return run, more

    def summary(self) -> str:
        """For people: what was played, and whether that is all."""
        runs = ", ".join(f"{count} with {faults} faults" for faults, count in sorted(self.runs.items()))
        ends = ", ".join(f"{count} {reason}" for reason, count in self.ends.most_common())
        whole = (
            f"complete from point {self.first} on"
            if self.is_complete
            else f"NOT complete: {self.waiting} schedules are left"
        )
        return (
            f"{sum(self.runs.values())} runs ({runs}): {len(self.broken)} broke a rule\n"
            f"{self.points} decision points, {self.states} different states in which faults were placed; "
            f"depth {self.depth}, {whole}\n{ends}"
        )


def main(words: Sequence[str] | None = None, plant: Plant | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.explore", description=__doc__)
    parser.add_argument("--depth", type=int, default=1, help="how many faults are placed")
    parser.add_argument("--min", type=int, default=1, help="how many nodes the run needs")
    parser.add_argument("--starts", action="store_true", help="the job has started again in the base already")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--first", type=int, default=1, help="the first decision point at which a fault is placed")
    parser.add_argument("--grain", type=float, default=FINE, help="what tells two times of a state apart, in leases")
    parser.add_argument(
        "--outline", action="store_true", help="tell states apart by phases, claims and who works alone"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="play no longer")
    arguments = parser.parse_args(words)
    began = time.monotonic()
    exploration = Exploration(
        base(arguments.min, starts=2 if arguments.starts else 1),
        depth=arguments.depth,
        kinds=tuple(arguments.kinds),
        grain=None if arguments.outline else arguments.grain,
        first=arguments.first,
        plant=plant,
        until=began + 60 * arguments.minutes,
    )
    shown, says_at = 0, began + SAYS_EVERY_S
    for _ in exploration.schedules():
        for broken in exploration.broken[shown:]:
            print(f"{broken.why}\n  {broken.scenario!r}", flush=True)
        shown = len(exploration.broken)
        if time.monotonic() > says_at:
            says_at += SAYS_EVERY_S
            played, states = sum(exploration.runs.values()), exploration.states
            print(f"{played} runs, {states} states, {exploration.waiting} schedules wait", file=sys.stderr, flush=True)
    print(f"{exploration.summary()}\nin {time.monotonic() - began:.0f} s")
    return 1 if exploration.broken or not exploration.is_complete else 0


if __name__ == "__main__":
    collect_rarely()
    sys.exit(main())
