"""The copies of training states on other simulated nodes, and what must hold of them.

The keepers are processes of their own: they go on while their agents are frozen, and end when these die. What a node
keeps and forgets is decided by the shipped `CopyLedger`, what is copied and how often by the functions of
`state_memory` that the keeper calls, and who copies to whom by the head.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from hpc_elastic.membership.copy_ledger import CopyLedger, Lateness
from hpc_elastic.membership.held_states import part_of, shared_place
from hpc_elastic.membership.messages import Assign
from hpc_elastic.rundir.records import AttemptClaim, Endpoint, World
from hpc_elastic.rundir.state_records import HeldState, StateVersion
from hpc_elastic.state_memory import has_missed
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.rules.states import NodeStates, Saved
    from tests.simulation.world import SimulatedRun

KEEPER_PORTS = 1000  # a keeper's port, above its agent's
LOOKS_EVERY_S = 0.02
DIALS_AGAIN_S = 2.0
MOST_SOURCES = 3  # that a node is told of: each that it asks in vain costs time


class NodeCopies:
    """One node's keeper: what it sends, and what it has of others."""

    def __init__(self, agent: Agent, states: NodeStates) -> None:
        self._agent = agent
        self._run = agent.run
        self._states = states
        self._ledger = CopyLedger()
        self._kept: dict[tuple[str, int], list[Saved]] = {}
        self._number = 0  # of the attempt that is sent
        self._last: tuple[StateVersion, int] | None = None  # what was copied last, and the how manieth save it was
        self._part = ""
        self.every = 0
        self._lateness, self._is_late = Lateness(), False
        self.told: tuple[HeldState, ...] = ()  # what the head has heard of last ...
        self.told_at = 0.0  # ... and when its agent had asked for that

    @cached_property
    def _dice(self) -> random.Random:
        return random.Random(f"{self._run.scenario.seed}/{self._agent.number}/{self._agent.start_number}/copies")

    # As `agent.keeper.process`.

    def begin(self, assign: Assign, part: str) -> None:
        self._run.states.copied.begins(self._agent, assign)
        version = None if assign.state is None else (assign.state.attempt, assign.state.step)
        self._ledger.begin(assign.attempt, version)
        self.every = 0 if assign.copies_to is None else max(1, self.every // 2)
        self._number, self._part, self._last = assign.attempt, part, None
        if (to := assign.copies_to) is not None:
            self._run.clock.after(LOOKS_EVERY_S, lambda: self._look(assign.attempt, to))

    def held(self) -> tuple[HeldState, ...]:
        self.told_at = self._run.clock.now
        self.told = tuple(
            HeldState(attempt=attempt, step=step, part=part, is_copy=True)
            for part, (attempt, step) in self._ledger.held()
        )
        return self.told

    def fetch(self, assign: Assign, wanted: StateVersion) -> list[Saved] | None:
        """As `agent.keeper.fetch`."""
        self._run.states.copied.fetches(self._agent, assign)
        for holder in assign.state_from:
            other = self._at(holder)
            found = other.workers.states.copies.give(assign, wanted) if self._is_reached(other) else None
            if found is not None and not any(self._is_found_damaged(each) for each in found):
                return found
        return None

    def give(self, assign: Assign, wanted: StateVersion) -> list[Saved] | None:
        own = self._states.own(part_of(assign), shared_place(assign.role), wanted)
        if own is not None:
            return own
        slot = self._slot_of(part_of(assign), wanted)
        return None if slot is None else self._kept[part_of(assign), slot]

    def copy_of(self, part: str, wanted: StateVersion) -> list[Saved]:
        """As `agent.workers.rank_states.RankStates.copies_of`: what is damaged is not had."""
        slot = self._slot_of(part, wanted)
        found = [] if slot is None else self._kept[part, slot]
        return [] if any(self._is_found_damaged(each) for each in found) else found

    def _slot_of(self, part: str, wanted: StateVersion) -> int | None:
        return self._ledger.find(part, (wanted.attempt, wanted.step))

    def _is_found_damaged(self, saved: Saved) -> bool:
        return saved.is_damaged

    def _at(self, keeper: Endpoint) -> Agent:
        return self._run.agent_at(keeper.address, keeper.port - KEEPER_PORTS)

    def _is_reached(self, other: Agent) -> bool:
        network = self._run.network
        is_open = network.is_open(self._agent, other) and network.is_open(other, self._agent)
        return other is self._agent or (other.is_running and is_open)

    # As `agent.keeper.sender`.

    def _look(self, number: int, to: Endpoint) -> None:
        if not self._agent.is_running or self._number != number:
            return
        after_s, sources = LOOKS_EVERY_S, self._states.newest_copied()
        if sources is not None and (self._last is None or sources[0].version != self._last[0]):
            last = None if self._last is None else self._last[1]
            self._is_late = has_missed(sources[0].ordinal, last, self.every)
            if self._is_late and self._lateness.late():
                self.every *= 2
            elif not self._is_reached(self._at(to)):
                after_s = DIALS_AGAIN_S
            elif self._send(number, to, sources):
                return
        self._run.clock.after(after_s, lambda: self._look(number, to))

    def _send(self, number: int, to: Endpoint, sources: list[Saved]) -> bool:
        """Begin to copy; return whether the other node takes it."""
        other, part, version = self._at(to), self._part, sources[0].version
        if (slot := other.workers.states.copies.takes(part, version)) is None:
            return False
        duration = (self._run.scenario.copy_s or 0.0) * self._dice.uniform(0.5, 1.5)

        def sent() -> None:
            """All is sent, if both are still there and nothing was overwritten."""
            is_there = self._agent.is_running and self._number == number and self._is_reached(other)
            is_whole = is_there and self._states.own(part, "", version) is not None
            taken = other.workers.states.copies.received(part, slot, sources if is_whole else None, version)
            if not self._agent.is_running or self._number != number:
                return
            if is_whole:
                self._last = version, sources[0].ordinal
                self.every = other.workers.states.copies.every = max(self.every, other.workers.states.copies.every)
            if taken:
                self._run.states.copied.copied(self._agent, other, version)
            newest = self._states.newest_copied()
            if not self._is_late and (newest is None or newest[0].version == version):
                self._lateness.in_time()
            elif not is_whole or (not self._is_late and self._lateness.late()):
                self.every *= 2
            self._run.clock.after(LOOKS_EVERY_S, lambda: self._look(number, to))

        self._run.clock.after(duration, sent)
        return True

    def takes(self, part: str, version: StateVersion) -> int | None:
        """As `agent.keeper.copies.Copies.take`: the slot, None if it is not taken now."""
        is_wanted = self._ledger.is_wanted((version.attempt, version.step))
        return self._ledger.start(part) if is_wanted and not self._ledger.is_being_filled(part) else None

    def received(self, part: str, slot: int, sources: list[Saved] | None, version: StateVersion) -> bool:
        """The end of what `takes` began, by an error if there are no sources; damage is found by the checksums."""
        half = self._run.scenario.damage_chance / 2
        copies = [self._damaged(each, half) for each in sources or ()]
        is_sound = bool(copies) and not any(self._is_found_damaged(each) for each in copies)
        if is_sound:
            self._kept[part, slot] = [self._damaged(each, half) for each in copies]
        self._ledger.finish(part, slot, (version.attempt, version.step) if is_sound else None)
        return is_sound

    def _damaged(self, saved: Saved, chance: float) -> Saved:
        return replace(saved, is_damaged=saved.is_damaged or self._dice.random() < chance)

    def truth(self) -> tuple[HeldState, ...]:
        """What is here undamaged, of what the head was told of."""
        found = []
        for state in self.told:
            slot = self._slot_of(state.part or "", state.version)
            if slot is not None and not any(each.is_damaged for each in self._kept[state.part or "", slot]):
                found.append(state)
        return tuple(found)


class CopiesSeen:
    """What the nodes of a run have copied, and the rules for what an attempt begins with where they do."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self.kept_promises = 0  # attempts after the loss of a node that had to begin with what was copied
        # By version, which nodes have copied it, to which, and when.
        self._copied: dict[StateVersion, dict[str, tuple[str, float]]] = {}
        self._tried: set[StateVersion] = set()

    def copied(self, source: Agent, target: Agent, version: StateVersion) -> None:
        """A node's states are on another one."""
        self._copied.setdefault(version, {})[source.name] = target.name, self._run.clock.now

    def begins(self, agent: Agent, assign: Assign) -> None:
        """A node is told to which other one of those that start with it its states go, if there is another one."""
        run, world = self._run, self._run.disk.latest
        if world is None or world.attempt != assign.attempt or run.scenario.copy_s is None:
            return
        restarts = {role.role: role.restart for role in world.roles}
        together = {role for role, restart in restarts.items() if restart == "restart_all"}
        group = together if assign.role in together else {assign.role}
        others = {node.node for node in world.nodes if node.role in group} - {agent.name}
        target = None if assign.copies_to is None else assign.copies_to.address
        is_so = target in others if others else target is None
        what = f"{agent.name} is to copy its states to {target}, and starts with {sorted(others)}"
        require(is_so, what)
        leaves = Counter(self._run.peer(agent, name).switch for name in (*others, agent.name))
        if target is not None and 2 * max(leaves.values()) <= leaves.total():
            is_apart = self._run.peer(agent, target).switch != agent.switch
            require(is_apart, f"{what}: both are at one switch, and there are others")

    def fetches(self, agent: Agent, assign: Assign) -> None:
        """A node is about to fetch the state with which its ranks begin, if it is told who has it: itself first."""
        sources = [each.address for each in assign.state_from]
        is_so = len({*sources}) == len(sources) <= MOST_SOURCES and agent.name not in sources[1:]
        require(is_so, f"{agent.name} is told to fetch its state from {sources}")

    def lacks(self, agent: Agent, assign: Assign) -> None:
        """A node cannot begin with the state that it is told: not because nobody has told it who has that."""
        is_whole = not self._run.scenario.damage_chance and self._run.kept.whole
        what = f"{agent.name} has not got {assign.state}, with which attempt {assign.attempt} begins"
        require(bool(assign.state_from) or not is_whole, f"{what}, and is not told who has")

    def claimed(
        self,
        head: Agent,
        world: World,
        names: Sequence[str],
        found: StateVersion | None,
        before: AttemptClaim | None,
        last: Mapping[int, int],
    ) -> None:
        """These nodes of a world begin with the newest state that they have, or can get from each other.

        `last` is the step that each of their ranks had saved last.
        """
        newest = max(self._common(head, world, names), default=None)
        text = f"attempt {world.attempt} begins {', '.join(names)} with {found}, and its nodes have {newest}"
        is_enough = newest is None or newest in self._tried or (found is not None and found >= newest)
        require(is_enough, text)
        if before is not None and before.allocation == world.allocation and not self._run.scenario.damage_chance:
            self._check_promise(head, world, names, found, self._run.disk.worlds[before.attempt], last)
        if found is not None:
            self._tried.add(found)

    def _common(self, head: Agent, world: World, names: Sequence[str]) -> set[StateVersion]:
        agents = {node.node: self._run.peer(head, node.node) for node in world.nodes}
        copies = [state for agent in agents.values() for state in agent.workers.states.copies.truth()]
        fitting = []
        for name in names:
            part, role = part_in(world, name), next(each.role for each in world.nodes if each.node == name)
            peers = [agents[each.node] for each in world.nodes if each.role == role]
            shared = (
                state for peer in peers for state in peer.workers.states.truth() if state.part == shared_place(role)
            )
            own = (state for state in agents[name].workers.states.truth() if state.part == part)
            others = (state for state in copies if state.part == part)
            fitting.append({state.version for each in (shared, own, others) for state in each})
        return set.intersection(*fitting) if fitting else set()

    def _check_promise(
        self,
        head: Agent,
        world: World,
        names: Sequence[str],
        found: StateVersion | None,
        earlier: World,
        last: Mapping[int, int],
    ) -> None:
        """Where copies have kept up with saves, a lost node costs no more than what was not copied yet.

        Two copies of a rank are kept. Where several nodes are lost, and one of them was cut off before it had sent its
        last one, those of another are both newer than what the first one's neighbour has.
        """
        lost = {node.node for node in earlier.nodes} - {node.node for node in world.nodes}
        parts = {part_in(world, name) for name in names}
        nodes = [node.node for node in earlier.nodes if part_in(earlier, node.node) in parts]
        if len(nodes) != len(names) or not lost.intersection(nodes) or not last:
            return
        agents = [self._run.peer(head, node) for node in nodes]
        if any(agent.workers.states.copies.every != 1 for agent in agents):
            return
        saved = min(last.values())
        copied = [(version, sent) for version, sent in self._copied.items() if version.attempt == earlier.attempt]
        newest = [
            max((version.step for version, sent in copied if node in sent), default=0)
            for node in lost.intersection(nodes)
        ]
        if max(newest) - min(newest) > 1:
            return
        for version, targets in sorted(self._copied.items(), reverse=True):
            is_copied = all(node in targets for node in nodes)
            is_kept = is_copied and all(self._is_kept(head, *targets[node], lost) for node in lost.intersection(nodes))
            if version.attempt == earlier.attempt and is_kept and saved - version.step <= 1:
                self.kept_promises += 1
                text = f"attempt {world.attempt} begins with {found} after the loss of {lost}; all had copied {version}"
                require(found is not None and found >= version, text)
                return

    def _is_kept(self, head: Agent, target: str, at: float, lost: Collection[str]) -> bool:
        """Whether a copy is on a node that is there, and was complete when its agent has asked for what is there."""
        return target not in lost and at <= self._run.peer(head, target).workers.states.copies.told_at


def part_in(world: World, name: str) -> str:
    """As `membership.held_states.part_of`."""
    node = next(each for each in world.nodes if each.node == name)
    role = next(each for each in world.roles if each.role == node.role)
    first = world.ranks[node.first_rank].role_rank
    return f"{node.first_rank}+{node.workers}/{len(world.ranks)} {first}/{role.size} {node.role}"
