"""Saves on request, in random schedules of ranks that train on: the shipped head's side and pins, without a disk."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from hpc_elastic.agent.workers.rank_states import RankStates
from hpc_elastic.membership.actions import SendToMember
from hpc_elastic.membership.held_states import rank_places, shared_place
from hpc_elastic.membership.messages import Assign, Message, Pinned, PinState, Saved, SaveState, UnpinState
from hpc_elastic.membership.rounds import assignments
from hpc_elastic.membership.state_save import CompleteSave, SaveAction, SaveOver, SavePhase, StateSave
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.state_records import KeptRecord
from hpc_elastic.state_memory import (
    ALLOCATED,
    ATTEMPT,
    CHECK,
    GROWS_BY,
    IS_REPLICATED,
    LENGTH,
    NOTHING,
    PIN_IS_FIRM,
    PIN_STEP,
    SAVED_IN,
    SEQUENCE,
    SLOTS,
    STEP,
    SlotState,
    choose_slot,
    header_check,
    is_held,
    pinned_state,
    read_slots,
    slot_header,
)
from tests.membership.test_held_states import world_of

SEEDS = 16
WITHIN_S = 1000.0


class BrokenRuleError(Exception):
    """A schedule shows what must never be."""


@dataclass
class Rank:
    """A rank that saves as `worker.rank_state` does, in two moves; what is in a slot is kept beside its header."""

    numbers: memoryview
    room: int  # slots that there is memory for
    is_replicated: bool
    is_newest_gone: bool = False  # the save under way overwrites the newest state
    content: dict[int, list[int]] = field(default_factory=dict)  # by slot: the step, in the first half and the second
    called: int = 0
    under_way: tuple[int, int] | None = None

    @property
    def done(self) -> int:
        return self.called - bool(self.under_way)

    def begin(self, step: int) -> None:
        self.called = step
        held = read_slots(self.numbers)
        with_memory = [slot for slot in range(SLOTS) if slot_header(self.numbers, slot)[ALLOCATED]]
        slot = NOTHING
        if (pinned := pinned_state(self.numbers, held)) is not None:
            slot = choose_slot(held, with_memory, 0, pinned)
            if slot not in with_memory and len(with_memory) >= self.room:
                slot = NOTHING
            if slot == NOTHING and self.numbers[PIN_IS_FIRM]:
                slot = choose_slot(held, with_memory, 0, pinned)
                if slot not in with_memory:
                    slot = next(each for each in with_memory if each != pinned.slot)
        slot = choose_slot(held, with_memory, 0) if slot == NOTHING else slot
        self.is_newest_gone = bool(held) and slot == held[0].slot
        header = slot_header(self.numbers, slot)
        sequence = 1 + max((each.sequence for each in held), default=0)
        header[SEQUENCE], header[ALLOCATED] = 0, GROWS_BY
        self.content[slot] = [step, self.content.get(slot, [0, 0])[1]]
        header[SAVED_IN], header[STEP], header[LENGTH] = self.numbers[ATTEMPT], step, 8
        header[IS_REPLICATED] = self.is_replicated
        header[CHECK] = header_check(header, sequence)
        self.under_way = slot, sequence

    def end(self) -> None:
        if self.under_way is not None:
            slot, sequence = self.under_way
            self.content[slot][1] = self.called
            slot_header(self.numbers, slot)[SEQUENCE] = sequence
            self.under_way = None


@dataclass
class Write:
    """One state that a node reads, half by half, to write it."""

    rank: Rank
    state: SlotState
    name: str
    place: str
    read: list[int] = field(default_factory=list)


class Scene:
    """A head, nodes and ranks; `play` makes one random move after the other."""

    def __init__(
        self,
        seed: int,
        save: type[StateSave] = StateSave,
        *,
        looks_after_reading: bool = True,
        is_firm_at_once: bool = False,
        is_ever_firm: bool = True,
    ) -> None:
        self.random = random.Random(seed)
        self.world = world_of(*["default"] * self.random.randint(1, 3), workers=self.random.randint(1, 2))
        self.looks_after_reading, self.is_firm_at_once = looks_after_reading, is_firm_at_once
        self.is_ever_firm = is_ever_firm
        self.is_replicated = self.random.random() < 0.25
        self.assigns: dict[str, Assign] = assignments(self.world, "")
        self.states: dict[str, RankStates] = {}
        self.ranks: dict[str, list[Rank]] = {}
        for node, assign in self.assigns.items():
            states = self.states[node] = RankStates(lambda _: None)
            states.begin(assign)
            for descriptor in states.descriptors:
                for slot in range(SLOTS):
                    reserve_slot_sparsely(descriptor, slot)
            room = self.random.choice((2, 3, 4))
            self.ranks[node] = [Rank(numbers, room, self.is_replicated) for numbers in states._numbers]
        self.has_room = all(rank.room > 2 for ranks in self.ranks.values() for rank in ranks)
        self.train_weight = self.random.choice((0.2, 1.0, 5.0))
        self.save = save(self.world, request="ab" * 16, now=0.0, within_s=WITHIN_S)
        self.to_node: dict[str, list[Message]] = {node: [] for node in self.assigns}
        self.to_head: dict[str, list[Message]] = {node: [] for node in self.assigns}
        self.asked: dict[str, PinState] = {}
        self.waiting: dict[str, PinState] = {}
        self.writes: dict[str, tuple[SaveState, list[Write], dict[str, KeptRecord]]] = {}
        self.over: SaveOver | None = None
        self.have_saved = False
        self.complete: CompleteSave | None = None

    def close(self) -> None:
        for states in self.states.values():
            states.close()

    # Moves.

    def moves(self) -> Iterator[tuple[float, str, str]]:
        everybody = [rank for ranks in self.ranks.values() for rank in self._savers(ranks)]
        slowest = min(rank.done for rank in everybody)  # nobody takes a step before all have saved the one before
        for node, ranks in self.ranks.items():
            if any(rank.under_way or rank.called == slowest for rank in self._savers(ranks)):
                yield self.train_weight, "train", node
            if self.to_node[node]:
                yield 1.0, "hear", node
            if self.to_head[node]:
                yield 1.0, "answer", node
            if node in self.waiting:
                yield 1.0, "look", node
            if node in self.writes:
                yield 0.5, "write", node

    def _savers(self, ranks: list[Rank]) -> list[Rank]:
        return ranks[:1] if self.is_replicated else ranks

    def move(self) -> None:
        moves = list(self.moves())
        _, what, node = self.random.choices(moves, [weight for weight, _, _ in moves])[0]
        getattr(self, f"_{what}")(node)

    def _train(self, node: str) -> None:
        everybody = [rank for ranks in self.ranks.values() for rank in self._savers(ranks)]
        slowest = min(rank.done for rank in everybody)  # nobody takes a step before all have saved the one before
        able = [rank for rank in self._savers(self.ranks[node]) if rank.under_way or rank.called == slowest]
        rank = self.random.choice(able)
        if rank.under_way:
            rank.end()
        else:
            rank.begin(rank.called + 1)

    def _hear(self, node: str) -> None:
        message, states = self.to_node[node].pop(0), self.states[node]
        if isinstance(message, PinState):
            states.unpin()
            self.writes.pop(node, None)
            self.asked[node] = self.waiting[node] = message
            self._look(node)
        elif isinstance(message, UnpinState):
            states.unpin()
            self.waiting.pop(node, None)
        elif isinstance(message, SaveState):
            self._begin_to_write(node, message)

    def _look(self, node: str) -> None:
        message, states = self.waiting[node], self.states[node]
        held = states.pin(message.first)
        if self.is_firm_at_once and held:
            states.make_pin_firm(held[0].version)
        if held or message.first is None:
            del self.waiting[node]
            self.to_head[node].append(Pinned(request=message.request, number=message.number, held=held))

    def _begin_to_write(self, node: str, message: SaveState) -> None:
        if self.asked[node].number != message.number:
            return
        states, saved = self.states[node], Saved(request=message.request, number=message.number, files={})
        found = states._of_version(message.version)
        if not any(each.version == message.version for each in states.hold()):
            gone = Saved(request=message.request, number=message.number, files={}, problem="gone", is_gone=True)
            self.to_head[node].append(gone)
            return
        if self.is_ever_firm:
            states.make_pin_firm(message.version)
        else:
            states.unpin()
        if message.flush is None:
            self.to_head[node].append(saved)
            return
        assign, writes = self.assigns[node], []
        whose = list(zip(map(RunLayout.kept_of_rank, count(assign.first_rank)), rank_places(assign), strict=False))
        if self.is_replicated:
            whose = [(RunLayout.kept_of_all(assign.role), shared_place(assign.role))]
        for rank, state, (name, place) in zip(self._savers(self.ranks[node]), found, whose, strict=False):
            assert state is not None
            writes.append(Write(rank=rank, state=state, name=name, place=place))
        self.writes[node] = message, writes, {}

    def _write(self, node: str) -> None:
        message, writes, files = self.writes[node]
        write = writes[0]
        write.read.append(write.rank.content[write.state.slot][len(write.read)])
        if len(write.read) < 2:
            return
        if self.looks_after_reading and not is_held(write.rank.numbers, write.state):
            del self.writes[node]
            gone = Saved(request=message.request, number=message.number, files={}, problem="gone", is_gone=True)
            self.to_head[node].append(gone)
            return
        if set(write.read) != {write.state.step}:
            raise BrokenRuleError(f"a torn state: {write.read} for step {write.state.step}")
        files[write.name] = KeptRecord(
            attempt=write.state.attempt, step=write.state.step, place=write.place, length=8, crc=0
        )
        writes.pop(0)
        if not writes:
            del self.writes[node]
            self.to_head[node].append(Saved(request=message.request, number=message.number, files=files))

    def _answer(self, node: str) -> None:
        self.act(self.save.received(node, self.to_head[node].pop(0), 0.0))

    def act(self, actions: list[SaveAction]) -> None:
        for action in actions:
            if isinstance(action, SendToMember):
                self.to_node[action.node].append(action.message)
            elif isinstance(action, CompleteSave):
                self.complete = action
                self._check_complete(action)
                self.act(self.save.completed(None))
            else:
                self.over = action

    # Rules.

    def _check_complete(self, action: CompleteSave) -> None:
        assigns = self.assigns.values()
        places = {shared_place("default")} if self.is_replicated else {p for each in assigns for p in rank_places(each)}
        if {record.place for record in action.files.values()} != places:
            raise BrokenRuleError(f"a manifest without all shards: {sorted(action.files)}")
        if len({record.version for record in action.files.values()}) != 1:
            raise BrokenRuleError(f"two steps mixed: {action.files}")

    def check_common(self) -> None:
        """Whatever a request does, the ranks have a step in common at every moment, once all have saved."""
        savers = [rank for ranks in self.ranks.values() for rank in self._savers(ranks)]
        if min(rank.done for rank in savers) < 1:
            return
        held = [{state.version for state in read_slots(rank.numbers)} for rank in savers]
        # A pin becomes firm, and ends, on one node a moment before the other. If then a rank without room has saved a
        # step in the place of its newest, and is killed before the others have saved that step, all load from disk.
        are_firm = {bool(rank.numbers[PIN_STEP] and rank.numbers[PIN_IS_FIRM]) for rank in savers}
        slowest = min(rank.done for rank in savers)
        is_exposed = any(rank.is_newest_gone and rank.called > slowest for rank in savers) and are_firm != {True}
        if not set.intersection(*held) and not is_exposed:
            raise BrokenRuleError(f"no step in common: {held}")

    def play(self) -> None:
        for _ in range(self.random.randint(0, 40)):
            self._train(self.random.choice([node for _, what, node in self.moves() if what == "train"]))
        self.have_saved = any(states.hold() for states in self.states.values())
        self.act(self.save.begin(0.0))
        for _ in range(20_000):
            if self.over is not None and not any(self.to_node.values()):
                break
            self.move()
            self.check_common()
        for _ in range(30):
            self._train(self.random.choice([node for _, what, node in self.moves() if what == "train"]))
            self.check_common()


def reserve_slot_sparsely(descriptor: int, slot: int) -> None:
    """Have the file go as far as the slot, as the agent checks, without memory behind it."""
    size = (slot + 1) * (1 << 40) + GROWS_BY
    if os.fstat(descriptor).st_size < size:
        os.ftruncate(descriptor, size)


def play(seed: int, save: type[StateSave] = StateSave, **bugs: bool) -> Scene:
    scene = Scene(seed, save, **bugs)
    try:
        scene.play()
    finally:
        scene.close()
    return scene


def play_all(seeds: int, save: type[StateSave] = StateSave, **bugs: bool) -> list[Scene]:
    return [play(seed, save, **bugs) for seed in range(seeds)]


@pytest.mark.long
def test_a_save_is_whole_and_of_one_step_and_costs_no_common_step_in_any_schedule() -> None:
    scenes = play_all(SEEDS)
    assert all(scene.over is not None for scene in scenes)
    # Where several steps pass between two messages, a node without room for one more slot can lose each state.
    able = [scene for scene in scenes if (scene.train_weight < 1 or scene.has_room) and scene.have_saved]
    assert len(able) > SEEDS / 4
    assert [scene.over.problem for scene in able if scene.over] == [None] * len(able)


class EarlyManifest(StateSave):
    def _wrote(self, node: str, message: Saved, now: float) -> list[SaveAction]:
        if message.files:
            self._asked = {node}
        return super()._wrote(node, message, now)


class IgnoresGone(StateSave):
    def _wrote(self, node: str, message: Saved, now: float) -> list[SaveAction]:
        return super()._wrote(node, Saved(request=message.request, number=message.number, files=message.files), now)


@pytest.mark.parametrize("bug", [EarlyManifest, IgnoresGone])
def test_a_planted_bug_of_the_head_is_found(bug: type[StateSave]) -> None:
    with pytest.raises(BrokenRuleError, match="a manifest without all shards"):
        play_all(SEEDS, bug)


@pytest.mark.long
def test_a_state_that_is_not_looked_at_after_it_was_read_is_found_torn() -> None:
    play_all(3, is_ever_firm=False)  # then it is overwritten, and that is seen
    with pytest.raises(BrokenRuleError, match="a torn state"):
        play_all(10 * SEEDS, is_ever_firm=False, looks_after_reading=False)


def test_a_pin_that_is_firm_before_all_have_agreed_is_found() -> None:
    with pytest.raises(BrokenRuleError, match="no step in common"):
        play_all(10 * SEEDS, is_firm_at_once=True)


def test_what_a_save_is_given_up_for_is_said() -> None:
    scene = Scene(1)
    scene.act(scene.save.begin(0.0))
    assert scene.save.next_tick() == WITHIN_S
    scene.act(scene.save.tick(WITHIN_S))
    assert scene.over is not None
    assert scene.over.problem is not None
    assert scene.over.problem.startswith("node0")
    assert scene.save.phase is SavePhase.OVER
    scene.close()
