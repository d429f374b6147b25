"""What the events of a run say: each thing once, in an order that can be, and with the nodes that it is about.

`docs/reference/run-directory.md` has what each event is of.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from hpc_elastic.membership.actions import Action, ClaimAttempt, Note, SendToMember, WriteResult
from hpc_elastic.membership.messages import Failed, Join, Message, Started, Welcome
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.rundir.records import AttemptClaim, RunResultRecord, World
from tests.simulation.rules.invariants import BrokenRuleError, require, start_of
from tests.simulation.rules.late_words import are_enough

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.workers import Worker
    from tests.simulation.world import SimulatedRun

CLOCKS_DIFFER_S = 2.0  # then people are told, for the times in its logs
EXACT_S = 0.001
ENDINGS = 2  # as a failure is seen, and as its cause is known


class _Told:
    """What one head has noted so far."""

    def __init__(self) -> None:
        self.here: set[str] = set()
        self.joins: Counter[str] = Counter()
        self.lost: set[str] = set()
        self.unhealthy: set[str] = set()
        self.aside: set[str] = set()
        self.left_out: dict[str, str] = {}  # and why: one that comes after all may have another reason
        self.opened: set[int] = set()
        self.given_up: set[tuple[int, str]] = set()  # attempts, and why
        self.has_claimed = False
        self.claimed_after: dict[int, int] = {}  # by attempt that it has claimed, or tried to: the one before
        self.endings = 0
        self.clocks: dict[str, float] = {}  # by node, how far its clock was ahead as its latest join arrived
        self.joining: set[str] = set()  # nodes that have asked to join, and have no answer yet
        self.owed: set[tuple[str, str]] = set()  # events that are to follow in this step, and their nodes


class Noted:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._by: defaultdict[object, _Told] = defaultdict(_Told)
        self._failed: set[tuple[int, int]] = set()  # attempts and ranks
        self._of_nodes: set[tuple[Agent, str, int, object]] = set()  # events of members, and whose process ended
        self._endings: list[str] = []  # why the scheduler stops the job

    # Of a head.

    def members(self, head: object) -> tuple[set[str], set[str]]:
        """The nodes that are with a head, as it has noted, and which of them are unhealthy."""
        told = self._by[head]
        return told.here, told.unhealthy

    def acts(self, agent: Agent, head: Any, action: Action) -> None:
        """A head does something."""
        told = self._by[head]
        if isinstance(action, SendToMember) and isinstance(action.message, Welcome):
            self._welcomes(told, action.node, action.message, is_ending=head.phase is HeadPhase.CLOSING)
        if isinstance(action, ClaimAttempt):
            self._claims(told, action.claim, action.world)
        if isinstance(action, WriteResult):
            self._gives_up(agent, told, action.result)
        if not isinstance(action, Note):
            return
        node = str(action.metadata.get("node", ""))
        what = f"{agent.name} notes {action.name} of {node}"
        told.owed.discard((action.name, node))
        if action.name.startswith("node."):
            self._comes_or_goes(told, what, action, node)
        elif action.name == "attempt.opened":
            self._opens(agent, told, action)
        elif action.name == "attempt.failed":
            ended = (action.attempt, action.message)
            is_new = ended not in told.given_up
            require(is_new, f"{agent.name} notes twice why attempt {action.attempt} is over: {action.message}")
            told.given_up.add(ended)
        elif action.name == "head.succeeded":
            instead_of = action.metadata.get("instead_of")
            require(instead_of != agent.name == action.metadata.get("head"), f"{what}: {action.message}")
        elif action.name == "spare.swapped_in":
            self._swaps(what, action)
        elif action.name == "run.ending":
            told.endings += 1
            require(told.endings <= ENDINGS, f"{what} for the {told.endings}th time")
        elif action.name == "failure.ignored":
            policies = {role.restart for role in self._run.scenario.roles}
            require("ignore" in policies, f"{what}: {action.message}, and no failure is ignored")

    def _comes_or_goes(self, told: _Told, what: str, action: Note, node: str) -> None:
        if action.name == "node.joined":
            require(node not in told.here, f"{what}, which is there")
            told.here.add(node)
            told.left_out.pop(node, None)
            told.joins[node] += 1
            told.endings = 0  # a run that was to end for lack of nodes may go on
        elif action.name == "node.lost":
            is_there = node in told.here or self._run.agent(node).problem is not None
            require(is_there, f"{what}, which is not there")
            told.here.discard(node)
            told.unhealthy.discard(node)
            told.lost.add(node)
        elif action.name == "node.returned":
            was_lost = node in told.lost or self._was_absent(told, node, action.attempt)
            require(was_lost, f"{what}, which was not lost")
            told.lost.discard(node)
        elif action.name == "node.unhealthy":
            require(bool(action.metadata.get("reason")), f"{what}, and not what was found")
            told.unhealthy.add(node)
        elif action.name == "node.healthy":
            require(node in told.unhealthy, f"{what}, which was healthy")
            told.unhealthy.discard(node)
        elif action.name == "node.set_aside":
            require(node not in told.aside, f"{what} again")
            told.aside.add(node)
        elif action.name == "node.left_out":
            why = str(action.metadata.get("reason") or "")
            require(bool(why), f"{what}, and not why")
            require(node not in told.here, f"{what}, which is there")
            require(told.left_out.get(node) != why, f"{what} again: {why}")
            told.left_out[node] = why
        elif action.name == "node.clock_differs":
            offset_s = float(action.metadata["offset_s"])
            is_so = self._differs(told, node) and abs(offset_s - told.clocks[node]) < 0.1
            require(is_so, f"{what} by {offset_s} s, and it is {told.clocks.get(node)} s ahead")

    def stepped(self, agent: Agent, head: object) -> None:
        """A head has done all that one event makes it do."""
        owed = self._by[head].owed
        if owed:
            self._by[head].owed = set()
            raise BrokenRuleError(f"{agent.name} does not note {sorted(owed)}")

    def hears_clock(self, agent: Agent, head: object, join: Join) -> None:
        """A node asks to join, and says what time of day it is there."""
        told, node, now = self._by[head], self._run.peer(agent, join.node), self._run.clock.now
        sent_at = join.clock_ns / 1e9 - node.wall_ahead_s
        is_so = node.started_at - EXACT_S <= sent_at <= now + EXACT_S
        require(is_so, f"{join.node} says at {now:.3f} s that it is {sent_at:.3f} s, by its clock")
        told.clocks[join.node] = sent_at + node.wall_ahead_s - now - agent.wall_ahead_s
        told.joining.add(join.node)

    def _differs(self, told: _Told, node: str) -> bool:
        return abs(told.clocks.get(node, 0.0)) >= CLOCKS_DIFFER_S

    def _welcomes(self, told: _Told, node: str, welcome: Welcome, *, is_ending: bool) -> None:
        if node in told.joining and self._differs(told, node):
            told.owed.add(("node.clock_differs", node))
        told.joining.discard(node)
        if is_ending:  # who comes as the run is to end leaves in a moment, or finds another head
            return
        if welcome.is_late and node not in told.here:
            told.owed.add(("node.parked", node))
        if node in told.lost and node not in told.here:
            told.owed.add(("node.returned", node))
        if self._run.agent(node).problem is None and node not in told.here:
            told.owed.add(("node.joined", node))

    def _gives_up(self, agent: Agent, told: _Told, result: RunResultRecord) -> None:
        """No head ends a run for want of nodes that are with it, also where they have come back meanwhile."""
        here = told.here - told.unhealthy
        if result.reason not in ("node_lost", "nodes_missing"):
            return
        what = f"{agent.name} ends the run for {result.reason} ({result.cause})"
        is_enough = are_enough(self._run, agent, here, has_world=bool(told.opened))
        require(not is_enough, f"{what}, and {sorted(here)} are with it")

    def _was_absent(self, told: _Told, node: str, attempt: int) -> bool:
        """Whether a node was in the world that a head carries on, and has not come to this one until now.

        That is the world of the attempt which its events are of, or before the one that it claims: another head may
        have opened a later one meanwhile. If this one has opened an attempt, that one's claim counts the node as lost.
        """
        before = told.claimed_after.get(attempt, attempt)
        carried_on, claim = self._run.disk.worlds.get(before), self._run.disk.latest_claim
        if carried_on is None or claim is None or told.joins[node] != 1:
            return False
        is_counted = claim.attempt in told.opened and any(each.node == node for each in claim.lost_nodes)
        return is_counted or any(each.node == node for each in carried_on.nodes)

    def _claims(self, told: _Told, claim: AttemptClaim, world: World) -> None:
        """A head claims an attempt, in which no node starts workers that it has noted to be unhealthy.

        A successor has lost whoever of the world before has not come to it when it claims its first one. The first head
        of a start has said of each other node of the step that the attempt goes on without it.
        """
        starting = {node.node for node in world.nodes if node.role in claim.roles}
        unhealthy = sorted(starting & told.unhealthy)
        require(
            not unhealthy, f"{claim.head} claims attempt {claim.attempt} with {unhealthy}, unhealthy as it has noted"
        )
        before = self._run.disk.worlds.get(claim.predecessor or 0)
        is_succession = before is not None and before.head != claim.head and not told.has_claimed
        if before is not None and is_succession and before.allocation == claim.allocation:
            told.lost |= {node.node for node in before.nodes} - told.here
        claimed = self._run.disk.claims.get(claim.predecessor or 0)
        is_first = claimed is None or start_of(self._run.disk, claimed) != start_of(self._run.disk, claim)
        is_first = is_first and not told.has_claimed
        absent = {agent.name for agent in self._run.agents} - told.here - told.lost - told.left_out.keys()
        require(not (is_first and absent), f"{claim.head} claims attempt {claim.attempt}, and says nothing of {absent}")
        told.has_claimed = True
        told.claimed_after[claim.attempt] = claim.predecessor or 0

    def _opens(self, agent: Agent, told: _Told, note: Note) -> None:
        claim, world = self._run.disk.claims.get(note.attempt), self._run.disk.worlds.get(note.attempt)
        what = f"{agent.name} notes that attempt {note.attempt} is opened"
        require(note.attempt not in told.opened, f"{what}, again")
        told.opened.add(note.attempt)
        require(claim is not None and claim.head == agent.name, f"{what}, which it has not claimed")
        assert claim is not None
        assert world is not None
        starting = [node.node for node in world.nodes if node.role in claim.roles]
        require(note.metadata.get("nodes") == starting, f"{what} on {note.metadata.get('nodes')}, not {starting}")

    def _swaps(self, what: str, note: Note) -> None:
        world, before = self._run.disk.worlds[note.attempt], self._run.disk.worlds.get(note.attempt - 1)
        node, gone = note.metadata.get("node"), note.metadata.get("instead_of")
        now = {(each.node, each.role) for each in world.nodes}  # a spare may be called back to its own role
        then = {(each.node, each.role) for each in before.nodes} if before else set()
        came, left = {name for name, _ in now - then}, {name for name, _ in then - now}
        require(node in came and gone in left, f"{what} in the place of {gone}: {now} after {then}")

    def watch(self) -> None:
        """From time to time: when all have their workers in an attempt, its head notes that it has started."""
        run, claim = self._run, self._run.disk.latest_claim
        is_usual = not run.witness.kinds and not run.witness.unkillable and not run.is_disturbed
        # Of a role whose failures are ignored some workers may never start, and then nothing is said.
        is_usual = is_usual and all(role.restart != "ignore" for role in run.scenario.roles)
        if claim is None or not is_usual or run.head_phase != "running" or run.disk.results:
            return
        world = run.disk.worlds[claim.attempt]
        attempts = {role.role: role.attempt for role in world.roles}
        are_there = all((node.node, attempts[node.role]) in run.witness.started_in for node in world.nodes)
        is_due = run.clock.now > run.disk.asked_at[claim.attempt] + 2 * run.progress.slack_s
        is_noted = ("attempt.started", claim.attempt) in run.conduct.noted
        require(is_noted or not (are_there and is_due), f"nobody notes that attempt {claim.attempt} has started")

    def stopping(self, note: Note) -> None:
        """A head notes that the scheduler stops the job."""
        self._endings.append(str(note.metadata.get("reason")))

    @property
    def endings(self) -> tuple[str, ...]:
        """Why the scheduler stops the job, as heads have noted it."""
        return tuple(self._endings)

    # Of a member.

    def notes(self, agent: Agent, note: Note) -> None:
        """A member notes something, or its driver does."""
        self._of_nodes.add((agent, note.name, note.attempt, note.metadata.get("local_rank")))
        if note.name == "worker.failed":
            rank = note.metadata.get("rank")
            if isinstance(rank, int):
                key = note.attempt, rank
                require(key not in self._failed, f"{agent.name} notes the failure of rank {rank} again")
                self._failed.add(key)

    def has_ended(self, agent: Agent, worker: Worker) -> None:
        """The agent has taken in that a worker has ended."""
        is_noted = (agent, "worker.exited", worker.attempt, worker.local_rank) in self._of_nodes
        require(is_noted, f"{agent.name} does not note the end of rank {worker.rank} in attempt {worker.attempt}")

    def reports(self, agent: Agent, message: Message) -> None:
        """A member tells its head of something: the event is there before."""
        if isinstance(message, Started):
            is_noted = (agent, "workers.started", message.attempt, None) in self._of_nodes
            require(is_noted, f"{agent.name} tells of its workers in attempt {message.attempt}, and has not noted them")
        if not isinstance(message, Failed):
            return
        key = message.attempt, message.failure.rank
        require(key in self._failed, f"{agent.name} tells of the failure of rank {key[1]}, and has not noted it")
