"""What a head tells its members is true, and reaches all whom it concerns: each message, as `messages` defines it.

What follows from the claim of an attempt is compared with that; why workers are stopped, with what has happened.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from hpc_elastic.membership import messages
from hpc_elastic.membership.actions import Action, AskScheduler, HeadOver, Note, SendToMember
from hpc_elastic.membership.member import MemberPhase
from hpc_elastic.membership.messages import Message, StopManner
from tests.simulation.disk import LAYOUT
from tests.simulation.rules.invariants import LOSING, BrokenRuleError, require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

ASKS_EVERY_S = 30.0  # the scheduler
LONG_LEASE_S = 30.0  # a shorter one is over before the scheduler knows of a machine that is gone
SOFT = frozenset({"stop", "term", "joined", "asked", "limit"})  # reasons to give workers their time
REQUEUE, RUN_DIRECTORY = 75, 5
WAITED = "timed out!"  # in the word of a rank that has waited for others in vain


class Orders:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._assigned: defaultdict[object, set[tuple[int, str]]] = defaultdict(set)  # by head: attempts and nodes
        self._opened: dict[object, int] = {}  # by head: the attempt that it has opened last
        self._opened_at: dict[object, float] = {}
        self._joined_at: dict[tuple[object, str], float] = {}  # by head and node: the last time that it asked
        self._beats: dict[tuple[object, str], int] = {}  # that a head has got and not answered
        self._asked_at: dict[object, float] = {}
        self._asked_about: dict[tuple[object, str], float] = {}  # the scheduler, by head and node
        self._parting: set[tuple[object, str]] = set()  # nodes that were told why they are dropped
        self._joining: set[tuple[object, str]] = set()  # who has asked to join, and has no answer yet
        self._gathered: defaultdict[object, set[str]] = defaultdict(set)  # who knows this head as one that gathers

    # Of beats.

    def gets_beat(self, head: object, node: str, number: int) -> None:
        """A beat has come from a member."""
        self._beats[head, node] = number

    def has_got_beat(self, head: object, node: str) -> None:
        """The head has carried out what it does about it: an answer, unless it knows no such member."""
        self._beats.pop((head, node), None)

    def gets_join(self, head: object, node: str) -> None:
        """An agent asks to join."""
        self._joining.add((head, node))
        self._joined_at[head, node] = self._run.clock.now
        self._gathered[head].discard(node)

    def answers_beat(self, agent: Agent, head: object, node: str, echo: Any) -> None:
        """A head answers a member's beat."""
        number = self._beats.pop((head, node), None)
        if number != echo.number:
            raise BrokenRuleError(f"{agent.name} answers beat {echo.number} of {node}, not {number}")

    # What a head does.

    def acts(self, agent: Agent, head: object, action: Action) -> None:
        """A head does something else than to answer a beat."""
        if isinstance(action, SendToMember):
            self._tells(agent, head, action.node, action.message)
        elif isinstance(action, AskScheduler):
            self._asks(agent, head, action)
        elif isinstance(action, HeadOver):
            self._is_over(agent, action)
        elif isinstance(action, Note) and action.name == "attempt.opened":
            self._opened[head], self._opened_at[head] = action.attempt, self._run.clock.now
        elif isinstance(action, Note) and action.name == "node.lost":
            self._gathered[head].discard(str(action.metadata["node"]))
            self._loses(agent, head, str(action.metadata["node"]))

    def stepped(self, agent: Agent, head: object) -> None:
        """A head has done all that one event makes it do: who is in a new attempt knows of it."""
        attempt = self._opened.get(head)
        if attempt is None or (attempt, "") in self._assigned[head]:
            return
        self._assigned[head].add((attempt, ""))
        claim, world = self._run.disk.claims[attempt], self._run.disk.worlds[attempt]
        starting = {node.node for node in world.nodes if node.role in claim.roles}
        told = {node for number, node in self._assigned[head] if number == attempt and node}
        # A spare may take this head's place only if it knows that it was the head.
        unaware = {node for node in self._gathered[head] if node not in {each.node for each in world.nodes}}
        require(not unaware, f"{agent.name} opens attempt {attempt}, and does not tell the spares {sorted(unaware)}")
        require(
            told == starting, f"{agent.name} opens attempt {attempt} and tells {sorted(told)}, not {sorted(starting)}"
        )

    def _tells(self, agent: Agent, head: object, node: str, message: Message) -> None:
        if isinstance(message, messages.Assign):
            self._assigned[head].add((message.attempt, node))
            self._gathered[head].discard(node)  # it knows its head by that
            self._assigns(agent, node, message)
        elif isinstance(message, messages.Refused):
            self._gathered[head].discard(node)  # it leaves
        elif isinstance(message, messages.Stop):
            self._stops(agent, node, message)
        elif isinstance(message, messages.Welcome):
            require(message.head == agent.name, f"{agent.name} welcomes {node} for {message.head}")
            self._welcomes(agent, head, node, message)
        elif isinstance(message, messages.End):
            self._ends(agent, node, message)

    def _assigns(self, agent: Agent, node: str, message: messages.Assign) -> None:
        claim, world = self._run.disk.claims[message.attempt], self._run.disk.worlds[message.attempt]
        what = f"{agent.name} tells {node} of attempt {message.attempt}"
        names = [each.node for each in world.nodes]
        require(node in names, f"{what}, which it is not in")
        group = message.group_rank, message.group_world_size
        require(group == (names.index(node), len(names)), f"{what} and calls it {group} of {names}")
        restarts = claim.spend.restarts
        require(message.restarts == restarts, f"{what} after {message.restarts} restarts, not {restarts}")
        require(message.head == claim.head, f"{what} under {message.head}, and {claim.head} is head")
        is_ignored = self._run.scenario.role(message.role).restart == "ignore"
        require(message.is_failure_ignored == is_ignored, f"{what} wrongly whether failures are ignored")
        is_given = (
            bool(self._run.notices)
            or self._run.scheduler.is_played
            or any(asked.kind in ("stop", "notice") for asked in self._run.requests)
        )
        require(message.notice is None or is_given, f"{what} with {message.notice}, which nobody has given")

    def _welcomes(self, agent: Agent, head: object, node: str, message: messages.Welcome) -> None:
        """Who has opened no attempt says that it only gathers, if another head has opened one in this allocation."""
        opens = head in self._opened and (self._opened[head], "") not in self._assigned[head]
        is_answer = (head, node) in self._joining or opens
        require(is_answer or node in self._gathered[head], f"{agent.name} welcomes {node}, which has not asked again")
        self._joining.discard((head, node))
        (self._gathered[head].add if message.gathers else self._gathered[head].discard)(node)
        number = self._opened.get(head)
        allocation, before = message.allocation, self._run.disk.claims
        what = f"{agent.name} welcomes {node}"
        require(not (message.gathers and number is not None), f"{what} and says that it gathers, in attempt {number}")
        require(not message.gathers or bool(before), f"{what} and says that it gathers, and nobody opened an attempt")
        known = [claim.allocation for claim in self._run.disk.allocations]
        require(allocation in known, f"{what} to allocation {allocation} of {known}")

    def _stops(self, agent: Agent, node: str, stop: messages.Stop) -> None:
        """There is a reason for the time that workers get: what ends them, and whether others may be at work soon."""
        witness, manner = self._run.witness, stop.manner
        what = f"{agent.name} has {node} stop attempt {stop.attempt} ({manner.value}): {stop.reason!r}"
        world = self._run.disk.worlds.get(stop.attempt)
        is_in = world is not None and any(each.node == node for each in world.nodes)
        require(is_in, f"{what}, which it is not in")
        require(bool(stop.reason), f"{what}, for no reason")
        is_lossy = bool(witness.kinds & {"loss", "disk", "term"})
        is_hard = manner in (StopManner.FENCE, StopManner.LOSS)
        require(not is_hard or is_lossy or "limit" in witness.kinds, f"{what}, and nobody is lost")
        is_failing = bool(witness.incidents) or bool(witness.kinds - SOFT) or bool(witness.unkillable)
        is_failing = is_failing or witness.is_exit_overdue()
        require(manner is not StopManner.RESTART or is_failing, f"{what}, and nothing has failed")
        is_term = "term" in witness.kinds or self._run.scheduler.is_played
        require(not stop.is_term_coming or is_term, f"{what}, as if a TERM came")
        may_hang = any(fault.what == "time_out" for fault in self._run.scenario.faults)
        require(may_hang or not stop.takes_stacks, f"{what} and takes stacks, and no rank hangs")
        is_of_wait = WAITED in stop.reason and manner is StopManner.RESTART
        require(stop.takes_stacks or not is_of_wait, f"{what}, and does not ask where the ranks are")
        is_ending = bool(witness.kinds & (SOFT | LOSING)) or witness.have_all_ended_well() or bool(witness.took_notice)
        is_ending = is_ending or self._run.polls.have_heard or witness.is_exit_overdue()
        require(manner is not StopManner.GRACE or is_ending, f"{what}, and nobody asks for it")

    def _ends(self, agent: Agent, node: str, end: messages.End) -> None:
        what = f"{agent.name} tells {node} to leave with {end.exit_code}: {end.cause!r}"
        require(bool(end.cause), f"{what}, for no reason")
        results = self._run.disk.results
        is_noted = bool(results) and results[0].exit_code == end.exit_code
        is_known = is_noted or end.exit_code == REQUEUE or "disk" in self._run.witness.kinds or bool(self._run.earlier)
        require(
            not end.is_settled or is_known, f"{what}, as if that were on record: {[each.reason for each in results]}"
        )
        require(end.is_settled or "disk" in self._run.witness.kinds, f"{what}, as if that were not on record")
        is_lost = end.exit_code == RUN_DIRECTORY  # others may write a result, or go on
        require(not (is_lost and end.is_settled), f"{what}, as if the run were over")
        if is_noted and "disk" not in self._run.witness.kinds:  # the script, which ends with that code, may wait for it
            told = self._run.files.content.get(LAYOUT.exit_code, [b""])[0]
            require(told == b"%d\n" % results[0].exit_code, f"{what}, and the script is told {told!r}")

    def _asks(self, agent: Agent, head: object, action: AskScheduler) -> None:
        """The scheduler is asked by the head alone, rarely, and about members that are silent."""
        now, before, lease_s = self._run.clock.now, self._asked_at.get(head), self._run.scenario.lease_s
        what = f"{agent.name} asks the scheduler about {action.nodes}"
        require(
            before is None or now - before >= ASKS_EVERY_S * 0.999, f"{what} {now - (before or 0):.1f} s after it did"
        )
        self._asked_at[head] = now
        require(lease_s >= LONG_LEASE_S, f"{what}, and its lease is {lease_s:g} s")
        require(bool(action.nodes), f"{what}, about nobody")
        self._run.carried_out.asks(agent, head, action)
        for node in action.nodes:
            self._asked_about[head, node] = now
            heard_at = self._run.heard_at.get((agent.name, node), (0.0, False))[0]
            silent_s = now - heard_at  # it counts from the newest answer that a member has got: two beats before
            is_so = silent_s >= lease_s / 6 - 0.5 or agent.process.has_ever_frozen or bool(self._run.earlier)
            # Where answers are lost, beats come all the same.
            is_so = is_so or any(fault.what not in ("power_off", "kill_agent") for fault in self._run.scenario.faults)
            require(is_so, f"{what}, and has heard {node} {silent_s:.1f} s ago")

    def _loses(self, agent: Agent, head: object, node: str) -> None:
        """Before a member's long lease is over the scheduler was asked about it, unless it was asked just before."""
        run, now, claim = self._run, self._run.clock.now, self._run.disk.latest_claim
        heard_at = max(run.heard_at.get((agent.name, node), (0.0, False))[0], self._joined_at.get((head, node), 0.0))
        lease_s, silent_s = run.scenario.lease_s, now - heard_at
        if lease_s < LONG_LEASE_S or claim is None or agent.process.has_ever_frozen or run.earlier:
            return
        is_member = claim.head == agent.name != node and node in claim.members
        # While its claim is on its way to the disk a head has no world yet.
        is_new = self._opened.get(head) != claim.attempt or now - self._opened_at[head] < lease_s / 2
        if not is_member or is_new or silent_s < lease_s / 2:
            return
        has_asked = self._asked_about.get((head, node), -1.0) > now - lease_s
        may_not_ask = self._asked_at.get(head, -ASKS_EVERY_S) > now - ASKS_EVERY_S - lease_s / 6
        what = f"{agent.name} loses {node} after {silent_s:.1f} s of silence"
        require(has_asked or may_not_ask, f"{what}, and has not asked the scheduler about it")

    def _is_over(self, agent: Agent, action: HeadOver) -> None:
        """Whether all have left is what the next start of the job rests on."""
        others = [each for each in self._run.agents if each is not agent and each.start_number == agent.start_number]
        others = others if agent in self._run.agents else [each for each in self._run.earlier if each is not agent]
        left = [each.name for each in others if each.is_running and each.name in self._run.witness.assigned]
        left = [name for name in left if self._run.peer(agent, name).member.phase is not MemberPhase.LEAVING]
        is_told = bool(self._run.disk.results) or any(fault.what == "reset" for fault in self._run.scenario.faults)
        if action.have_all_left and not is_told:  # a connection that somebody else has reset looks as an agent's end
            require(not left, f"{agent.name} says that all agents have left, and {left} have not")
        is_simple = all(role.restart != "ignore" for role in self._run.scenario.roles)  # whose workers may take long
        is_simple = (
            is_simple
            and not self._run.witness.kinds
            and not self._run.witness.unkillable
            and not self._run.is_disturbed
        )
        require(action.have_all_left or not is_simple, f"{agent.name} says that not all agents have left")
