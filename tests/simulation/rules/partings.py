"""Who lives and hangs up says so before: an end of a connection without a word is taken for the death of an agent.

It is a `Dropped` that is said, or the end of the run; `docs/explanation/membership.md` says who has to. Whoever has
asked to join has to say it as well as a member, for its request may have arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.membership.authentication import Side
from hpc_elastic.membership.timing import DRIFT
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.network import SimulatedConnection
    from tests.simulation.world import SimulatedRun

FAREWELLS = frozenset({"dropped", "end", "refused"})  # the kinds after which nobody takes the speaker for dead
NO_HEADS = frozenset({"elsewhere", "refused"})  # of answers: there is no head that could take anybody for lost


class Partings:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._read: dict[Agent, int] = {}  # the latest attempt when it began to read the records, 0 if there was none

    def reads(self, agent: Agent) -> None:
        """An agent begins to read the records of the run directory."""
        self._read[agent] = max(self._run.disk.claims, default=0)

    def hangs_up(self, agent: Agent, connection: SimulatedConnection, side: Side) -> None:
        """An agent closes a connection that is open so far."""
        if not agent.is_running or agent.exit_code is not None:  # the process ends with it, and there are no workers
            return
        said, heard = connection.said, connection.heard
        what = f"{agent.name} hangs up on {connection.peer}"
        if side is Side.DIALLING:
            is_asked = "join" in said and not heard & NO_HEADS
            require(not is_asked or bool(said & FAREWELLS), f"{what}, and has asked it to be its head, without a word")
            self._check_patience(agent, what, is_unanswered=is_asked and "welcome" not in heard)
        else:
            is_member = "welcome" in said and "dropped" not in heard  # one that has given this head up knows
            require(not is_member or bool(said & FAREWELLS), f"{what}, its member, without a word")

    def _check_patience(self, agent: Agent, what: str, *, is_unanswered: bool) -> None:
        """Who looks for its first head waits for the answer of one as long as it looks at all: heads may be slow.

        One that has opened an attempt with this node had answered before: it is lost when a lease is over. It may open
        the next attempt without this node while this node reads of that one.
        """
        if is_unanswered and not self._run.conduct.has_lost(agent):
            since_s = (self._run.clock.now - agent.started_at) * (1 + DRIFT)
            scenario, claims = self._run.scenario, self._run.disk.claims
            read = self._read.get(agent, max(claims, default=0))
            has_answered = any(agent.name in claim.members for number, claim in claims.items() if number >= read)
            waits_s = min(scenario.lease_s, scenario.join_timeout_s) if has_answered else scenario.join_timeout_s
            require(since_s >= waits_s, f"{what} after {since_s:.1f} s, and might have joined")
