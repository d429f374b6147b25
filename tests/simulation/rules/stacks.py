"""A person asks where the ranks are: every agent that has a head takes their stacks, once and soon, and nothing stops.

The last is a matter of the other rules: for these nothing has happened.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpc_elastic.rundir.records import Request
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.scenario import Fault
    from tests.simulation.world import SimulatedRun

STACKS = ("ask_stacks",)
LOOKS_WITHIN_S = 1.0  # a head, into the run directory


@dataclass
class _Asked:
    """A request: when it was made, who had a head then, and when each agent has taken the stacks for it."""

    moment: float
    here: set[str]
    taken: dict[str, float] = field(default_factory=dict)


class Stacks:
    """Of one run. Every method but `ask` raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._asked: dict[str, _Asked] = {}
        self._times: Counter[tuple[str, str]] = Counter()  # by request and node

    def ask(self, _: Fault) -> None:
        """A person asks now."""
        run, name = self._run, f"stacks-{len(self._asked)}"
        here = {agent.name for agent in run.agents if agent.is_running and agent.name in run.witness.joined}
        self._asked[name] = _Asked(run.clock.now, here if run.disk.claims else set())
        run.requests.append(Request(kind="stacks", by="ada@login", time="", id=name))

    def takes(self, agent: Agent, request: str) -> None:
        """An agent takes the stacks of its ranks."""
        require(request in self._asked, f"{agent.name} takes stacks for {request}, which nobody has asked for")
        self._asked[request].taken.setdefault(agent.name, self._run.clock.now)
        self._times[request, agent.name] += 1
        times, heads = self._times[request, agent.name], {claim.head for claim in self._run.disk.claims.values()}
        require(times <= max(1, len(heads)), f"{agent.name} takes stacks for {request} for the {times}th time")

    def check_end(self) -> None:
        """When nobody runs any more."""
        run = self._run
        if run.is_disturbed or run.witness.unkillable or not run.disk.results:
            return
        within_s = LOOKS_WITHIN_S + run.progress.slack_s
        for name, asked in self._asked.items():
            if asked.moment > run.disk.ended_at - within_s:
                continue
            late = {
                node
                for node in asked.here
                if asked.taken.get(node, asked.moment + 2 * within_s) > asked.moment + within_s
            }
            require(not late, f"{sorted(late)} have not taken the stacks for {name} within {within_s:.1f} s")
