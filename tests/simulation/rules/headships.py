"""How the driver of a head goes about its connections, its timer and its questions: each thing once, and none too many.

A head of thousands of members hears thousands of messages at once; what follows from them is done once for all.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from hpc_elastic.membership.job_end import ASKING_NODES
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.timing import DRIFT
from tests.simulation.clock import NEVER
from tests.simulation.disk import LAYOUT
from tests.simulation.rules.invariants import BrokenRuleError, require
from tests.simulation.scenario import HEAD, Fault

if TYPE_CHECKING:
    from hpc_elastic.membership.lease import MemberLease
    from hpc_elastic.rundir.records import AttemptClaim
    from tests.simulation.agent import Agent
    from tests.simulation.network import SimulatedConnection
    from tests.simulation.world import SimulatedRun

LOOKS_PER_LEASE = 12
SLOW_S = 0.001  # of a sum of times
RIVALS_S = 1.0  # between two looks
CLOSES_S = 5.0  # for members to leave, or as long as a silent one is known by then
LAST_BEAT_S = 0.5  # for a beat that was on its way as they were told
LATE_S = 0.1  # of timers
NOBODY_ENDS_JOB = "no agent can reach Slurm's controller"
RESETS = ("reset", "unreachable")  # a kernel is told by somebody between the two that the connection has ended


class Headships:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._warned: set[object] = set()  # heads that have said that nobody could end the job
        self._have_claimed: set[object] = set()
        self._all_left: list[tuple[Agent, int]] = []  # heads that have ended so, and their allocations
        self._claimed: dict[object, AttemptClaim] = {}  # by head, the one that it has tried to make last
        self._settled: dict[object, int] = {}  # by head: in which turn of its event loop
        self._asked: set[object] = set()  # heads that have asked what a TERM from outside means
        self._leases: dict[tuple[object, str], MemberLease] = {}  # by head and member that is told to leave
        self._ends: dict[object, tuple[float, set[str]]] = {}  # by head: when it has told members to leave, and which
        self._parts: defaultdict[object, set[str]] = defaultdict(set)  # by head: who has had one since it has joined

    def turns_away(self, agent: Agent, node: str, connection: SimulatedConnection) -> None:
        """A head has refused to take an agent in: the connection closes, and costs neither side anything."""
        require(connection.is_closed_here, f"{agent.name} refuses {node}, and keeps its connection")

    def warns(self, agent: Agent, head: object, text: str) -> None:
        """A head says something to people."""
        if text.startswith(NOBODY_ENDS_JOB):
            require(head not in self._warned, f"{agent.name} warns again that nobody could end the job")
            self._warned.add(head)

    def takes_in(self, head: object, node: str) -> None:
        """A head has a member, which may have been one before."""
        self._parts[head].discard(node)

    def gives_part(self, head: object, node: str) -> None:
        """A head gives a member a part in an attempt."""
        self._parts[head].add(node)

    def tells_to_leave(self, head: Any, node: str) -> None:
        """A head tells a member that the run is over."""
        if (member := head._roster.get(node)) is not None:
            self._leases[head, node] = member.lease
        self._ends.setdefault(head, (self._run.clock.now, set()))[1].add(node)

    def is_over(self, agent: Agent, head: Any, allocation: int, *, have_all_left: bool) -> None:
        """A head ends, and knows whether a worker of its allocation may be left anywhere."""
        require(head.phase is HeadPhase.OVER, f"the head of {agent.name} is over, and in phase {head.phase.value}")
        if have_all_left:
            self._all_left.append((agent, allocation))
        if agent.process.has_ever_frozen or head not in self._ends:
            return
        told_at, nodes = self._ends[head]
        scenario, waited_s = self._run.scenario, self._run.clock.now - told_at
        patience_s = scenario.lease_s * 2 / 3 - scenario.profile.hurries_s
        # Two beats; one and a half of who has had no part since it joined, and beats half as often.
        waits_s = max(CLOSES_S, patience_s * (0.5 if nodes <= self._parts[head] else 0.75) + LAST_BEAT_S)
        what = f"{agent.name} has told its members to leave, and is head for {waited_s:.2f} s more"
        require(waited_s <= waits_s * (1 + DRIFT) + LATE_S, f"{what}, not {waits_s:.2f} s")
        left = [node for node in sorted(nodes) if self._stays(agent, head, node)]
        require(not left or waited_s * (1 + DRIFT) >= waits_s, f"{what}, not {waits_s:.2f} s, and {left} are there")

    def _stays(self, here: Agent, head: object, node: str) -> bool:
        """Whether an agent has not left, for all that its head can know.

        A lease counts from the newest echo that the member has said it got, which is some beats older, or more where it
        stood still.
        """
        agent, run, lease = self._run.peer(here, node), self._run, self._leases.get((head, node))
        heard_at, is_goodbye = run.heard_at.get((here.name, node), (0.0, True))
        faults = ((at, fault) for at, _, fault in run.events if isinstance(fault, Fault) and fault.what in RESETS)
        # Which looks as if the agent had ended.
        is_reset = any(at >= heard_at and _is_between(fault, here, agent) for at, fault in faults)
        is_lost = lease is not None and here.now - lease.acked >= run.scenario.lease_s
        is_silent = is_goodbye or is_reset or is_lost or run.clock.now - heard_at >= run.scenario.lease_s / 2
        is_heard = agent is here or not is_silent
        return agent.exit_code is None and agent.is_running and is_heard

    def check_end(self) -> None:
        """Nobody runs any more: the next start of the job can read that it need not wait."""
        lines = [json.loads(line) for line in self._run.files.content[LAYOUT.requests][0].splitlines() if line]
        told = {line.get("allocation") for line in lines if line.get("kind") == "left"}
        for agent, allocation in self._all_left:
            could = agent.exit_code is not None and not agent.was_killed and agent.is_powered
            is_sure = could and not self._run.witness.kinds & {"disk"} and not agent.troubled_until
            require(allocation in told or not is_sure, f"all of allocation {allocation} have left, and no line says so")

    def steps_down(self, agent: Agent, head: Any) -> None:
        """A head gives way: to another one, to a result or to another start, and not to a claim that it made itself.

        What it hears of afterwards is nothing to it.

        An agent of the start before, on the same node, is another one: its claim may have come late to the disk.

        It may not know of that: the file system has answered with an error, and it tries again.
        """
        require(head.phase is HeadPhase.OVER, f"the head of {agent.name} gives way, and is in phase {head.phase.value}")
        run, claim = self._run, self._run.disk.latest_claim
        tried = self._claimed.get(head)
        is_own = (
            claim is not None
            and tried is not None
            and (claim.head, claim.attempt, claim.allocation) == (agent.name, tried.attempt, tried.allocation)
        )
        is_over = bool(run.disk.results) or agent not in run.agents
        is_over = is_over or run.disk.allocations[-1].node != agent.name  # another has claimed since
        require(is_over or not is_own, f"{agent.name} gives way to its own claim")

    def claims(self, agent: Agent, head: object, claim: AttemptClaim, here: set[str]) -> None:
        """A head has begun to claim an attempt: at the first it warns if nobody could end the job without the host.

        Only few agents find out at their start whether they could. Where none of these is here, nothing is known. One
        that is heard in the moment in which the round closes without it has said so as well.
        """
        self._claimed[head] = claim
        if head in self._have_claimed:
            return
        self._have_claimed.add(head)
        run = self._run
        # Who is sent away, or has left while this head stood still, is connected for a moment.
        if any(each.problem is not None or each.left_at < NEVER for each in run.agents):
            return
        asking = [run.peer(agent, node) for node in here if run.peer(agent, node).number in ASKING_NODES]
        is_host_here = run.agents[0].name in here
        is_due = bool(asking) and is_host_here and not any(each.can_end_job for each in asking)
        is_said = head in self._warned
        require(
            is_said == is_due, f"{agent.name} {'warns' if is_said else 'does not warn'} that nobody could end the job"
        )

    def looks_for_rival(self, agent: Agent) -> None:
        """A head reads who else has claimed an allocation: it yields to nobody once it has opened an attempt."""
        run, claim = self._run, self._run.disk.latest_claim
        if claim is None or agent.headquarters is None or (claim.head, run.earlier) != (agent.name, []):
            return
        if agent.process.has_ever_frozen:  # its look, or what it is told of its claim, comes that much later
            return
        since_s = run.clock.now - run.disk.asked_at[claim.attempt]
        require(since_s <= RIVALS_S + run.progress.slack_s, f"{agent.name} looks for rivals in attempt {claim.attempt}")

    def settles(self, agent: Agent, head: Any, due: float) -> None:
        """A driver sets its timer by what its machine says, once for all events of a turn of the event loop."""
        turn = agent.process.turns
        if self._settled.get(head) == turn:
            raise BrokenRuleError(f"the driver of {agent.name} settles twice in a turn of its loop")
        self._settled[head] = turn
        if head.phase is not HeadPhase.OVER:  # a member may be lost at any time, also while nothing else is due
            looks_s, due_s = self._run.scenario.lease_s / LOOKS_PER_LEASE, due - agent.now
            if due_s > looks_s + SLOW_S:
                what = f"{agent.name} looks at its members' leases in {due_s:.2f} s, in phase {head.phase.value}"
                raise BrokenRuleError(f"{what}, not within {looks_s:.2f} s")

    def asks_why(self, agent: Agent, head: object) -> None:
        """A head asks the scheduler why a TERM has come; every member of its world has got one."""
        require(head not in self._asked, f"{agent.name} asks the scheduler again why a TERM has come")
        self._asked.add(head)


def _is_between(fault: Fault, one: Agent, other: Agent) -> bool:
    """Whether a fault may be one of the connection of two agents; parts such as the head's have no number."""
    if fault.what == "reset":
        return fault.node < 0 or fault.node in (one.number, other.number)
    return min(fault.side, default=HEAD) < 0 or (one.number in fault.side) != (other.number in fault.side)
