"""A member that lives and is back in time is not counted as lost, and costs the others no more than its way back.

A connection that ends is most often an agent that is dead. It is none where that agent asks to join in the same moment,
by another connection; nor, as far as is known, where it had been silent for as long as a member is patient: then it has
half a lease to be back. Where all are back nobody has to fence any more, and the next attempt comes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpc_elastic.membership.timing import DRIFT, Timing
from hpc_elastic.rundir.records import AttemptClaim
from tests.simulation.clock import NEVER
from tests.simulation.rules.invariants import require
from tests.simulation.scenario import GRACE_S, LONGEST_PAUSE_S

if TYPE_CHECKING:
    from hpc_elastic.membership.actions import Note
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

AT_ONCE_S = 1e-6
NEARLY, QUIET = 0.9, 0.8
# After these no kernel says that an agent is gone which lives.
SILENT = ("partition", "one_way", "exit_worker", "kill_worker", "ask_restart", "kill_agent", "power_off")
HOLDING = ("disk", "pause", "freeze", "late", "requeue")


class Forgiven:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._timing = Timing(lease_s=run.scenario.lease_s, profile=run.scenario.profile)
        self._lost: dict[tuple[Any, str], tuple[float, bool]] = {}  # by head and node: when, and if it may be back
        self._back: dict[Any, dict[str, float]] = {}  # by head: who is forgiven, and when it was back
        self._joined_at: dict[Any, float] = {}  # by head: the latest join of any node, forgiven or not
        self._is_held_up = any(word in fault.what for fault in run.scenario.faults for word in HOLDING)

    def notes(self, agent: Agent, head: Any, note: Note) -> None:
        """A head notes that a node is lost, or is there."""
        now, node = self._run.clock.now, str(note.metadata.get("node", ""))
        if note.name == "node.joined":
            self._joined_at[head] = now
        if note.name == "node.lost":
            heard_at = self._run.heard_at.get((agent.name, node), (now, False))[0]
            silent_s, patience_s = (now - heard_at) / (1 + DRIFT), self._timing.patience_s
            is_quiet = QUIET * patience_s <= silent_s < NEARLY * self._run.scenario.lease_s
            is_over = note.message.startswith(f"{node}: no answer for ")  # of the lease, for all that is known
            self._lost[head, node] = now, is_quiet and not is_over
            self._back.get(head, {}).pop(node, None)
        elif note.name == "node.joined" and (head, node) in self._lost:
            lost_at, is_quiet = self._lost.pop((head, node))
            within_s = NEARLY * self._timing.returns_within_s if is_quiet else AT_ONCE_S
            lives = self._run.peer(agent, node).died_at == NEVER
            if lives and now - lost_at <= within_s:
                self._back.setdefault(head, {})[node] = now

    def claims(self, agent: Agent, head: Any, claim: AttemptClaim) -> None:
        """A head wants to open an attempt."""
        back, before = self._back.pop(head, {}), self._run.disk.latest_claim
        if before is None or before.head != agent.name or agent.process.has_ever_frozen:
            return
        then = {each.node: each.times for each in before.lost_nodes}
        counted = sorted(each.node for each in claim.lost_nodes if each.times > then.get(each.node, 0))
        self._check_fault(agent, head, claim, counted)
        if not back:
            return
        wrongly = [node for node in counted if node in back]
        what = f"attempt {claim.attempt} counts {counted} as lost"
        require(not wrongly, f"{what}, and {wrongly} were back in time: {back}")
        others = set(before.members) - back.keys()
        most = sum(self._run.witness.is_suspect(self._run.peer(agent, node)) for node in others)
        losses = claim.spend.node_losses - before.spend.node_losses
        require(losses <= most, f"attempt {claim.attempt} counts {losses} losses, and {sorted(back)} were back in time")
        self._check_prompt(claim, before, self._joined_at[head])

    def _check_fault(self, agent: Agent, head: Any, claim: AttemptClaim, counted: list[str]) -> None:
        """Of as many nodes that only fell silent as are left the fault may be the head's own: none of them is named."""
        here, _ = self._run.noted.members(head)
        alive = [node for node in counted if self._is_there(agent, node)]
        is_told = all(fault.what in SILENT for fault in self._run.scenario.faults)
        what = f"attempt {claim.attempt} names {alive} as lost, which live, and {sorted(here)} are here"
        require(not alive or len(alive) < len(here) or not is_told, what)

    def _is_there(self, agent: Agent, node: str) -> bool:
        """Return whether a node's agent lives, and has not left for want of a head either."""
        peer = self._run.peer(agent, node)
        return peer.died_at == NEVER and peer.exit_code is None

    def _check_prompt(self, claim: AttemptClaim, before: AttemptClaim, back_at: float) -> None:
        """Where all are back from the attempt before, nothing is waited for but workers that stop, and pauses."""
        run = self._run
        is_all = set(before.members) <= set(claim.members) and not self._is_held_up and not run.witness.unkillable
        if not is_all or any(each.died_at < NEVER for each in run.agents):
            return
        stops_s = min(GRACE_S, max(role.patience_s for role in run.scenario.roles))
        pause_s = min(LONGEST_PAUSE_S, 1.25 * run.scenario.pause_s(before.spend.restarts))
        since = max([back_at, *(each.moment for each in run.witness.unanswered())])
        allowed_s = stops_s + pause_s + run.progress.slack_s
        took_s = run.clock.now - since
        what = f"attempt {claim.attempt} comes {took_s:.2f} s after all are back"
        require(took_s <= allowed_s, f"{what}, not within {allowed_s:.2f} s")
