"""A person who asks for the end of the run gets it, whatever else goes wrong: no head that has heard of it goes on.

Nothing is excused here but another head that has not heard of it: nobody who has asked looks whether nodes were lost
in the same minute, and asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.rundir.records import AttemptClaim, RunResultRecord
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from hpc_elastic.membership.operator_stop import OperatorStop
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

FOR_WANT = ("node_lost", "nodes_missing")
LATE_S = 0.5  # a head that ticks when the announced time is over
ENDED = (HeadPhase.CLOSING, HeadPhase.OVER)


class Heeded:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._due: dict[Any, float] = {}  # by head, when the run is to be stopped

    def leads(self, agent: Agent, head: Any) -> None:
        """An agent has a head: from now on it is seen what it does when a person asks for the end."""
        requested, announced = head.stop_requested, head.stop_announced

        def stop(by: str, now: float) -> Any:
            return self._told(agent, head, 0.0, lambda: requested(by, now))

        def announce(stop: OperatorStop, now: float) -> Any:
            if stop.is_requeue:
                return announced(stop, now)
            return self._told(agent, head, stop.seconds_left, lambda: announced(stop, now))

        head.stop_requested, head.stop_announced = stop, announce

    def _told(self, agent: Agent, head: Any, left_s: float, hear: Any) -> Any:
        """A head that only waits for nodes has nobody to stop: the run is over at once, at whatever time is left."""
        before, done = head.phase, hear()
        if before not in ENDED:
            is_idle = before is HeadPhase.AWAITING_QUORUM
            due_at = self._run.clock.now + (0.0 if is_idle else left_s)
            self._due[head] = min(due_at, self._due.get(head, due_at))
            what = f"{agent.name} waits for nodes, and is asked for the end of the run"
            require(not is_idle or head.phase in ENDED, f"{what}, which goes on")
        return done

    def claims(self, agent: Agent, head: Any, claim: AttemptClaim) -> None:
        """A head wants to open an attempt."""
        due_at = self._due.get(head)
        is_so = due_at is None or self._run.clock.now <= due_at + LATE_S
        require(is_so, f"{agent.name} opens attempt {claim.attempt}, and was to end the run at {due_at or 0:.2f} s")

    def decides(self, agent: Agent, head: Any, result: RunResultRecord) -> None:
        """A head wants to end the run: as the person wanted it, and not as one that a lost node has ended."""
        due_at = self._due.get(head)
        is_so = due_at is None or self._run.clock.now < due_at or result.reason not in FOR_WANT
        require(is_so, f"{agent.name} ends the run for {result.reason}, and a person has asked for its end before")
