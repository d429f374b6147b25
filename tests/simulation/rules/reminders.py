"""What a head says while ranks start, or end, one after the other: half a minute apart, and for whom others wait."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.timing import DRIFT
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

REMINDS_EVERY_S = 30.0
STARTS, ENDS = "to start its workers", "to end its part"
TEXT = re.compile(rf"waiting (\d+) s for .* ({STARTS}|{ENDS})(;|$)")


class Reminders:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._said: dict[tuple[object, str], float] = {}  # by head, and what it waits for: when, at last

    def says(self, agent: Agent, head: object, text: str) -> None:
        """A head says something to people."""
        if text.startswith("the next attempt starts in "):
            left_s = head._restarts_at - agent.now  # type: ignore[attr-defined]
            require(left_s > 0, f"{agent.name} says at once, {left_s:.3f} s before the next attempt: {text}")
        if not text.startswith("waiting ") or (found := TEXT.match(text)) is None:
            return
        now, key = self._run.clock.now, (head, found[2])
        since_s = now - self._said.get(key, float("-inf"))
        self._said[key] = now
        is_due = int(found[1]) >= REMINDS_EVERY_S - 1 and since_s * (1 + DRIFT) >= REMINDS_EVERY_S - 1e-3
        require(is_due, f"{agent.name} says {since_s:.1f} s after the last time: {text}")

    def watch(self) -> None:
        """From time to time: who has waited so long for ranks to end has said for whom."""
        run, now = self._run, self._run.clock.now
        if run.witness.kinds or run.witness.unkillable or run.is_disturbed or run.head_phase is not HeadPhase.RUNNING:
            return
        world, claim = run.disk.latest, run.disk.latest_claim
        assert world is not None
        assert claim is not None
        current = {(role.role, role.attempt) for role in world.roles}
        ends = [at for part, at in run.witness.first_end.items() if part in current]
        if not ends:
            return
        began = max(min(ends), run.disk.asked_at[claim.attempt])
        waited_s = now - began
        said_at = max((at for (_, what), at in self._said.items() if what == ENDS), default=0.0)
        is_due = waited_s > REMINDS_EVERY_S + run.progress.slack_s and now > said_at + REMINDS_EVERY_S + 1.0
        require(
            not is_due, f"others wait for ranks to end for {waited_s:.1f} s, and nobody says so since {said_at:.1f} s"
        )
