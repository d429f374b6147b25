"""Which states a node copies to another one, and how often, where copies are slower than saves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hpc_elastic.agent.keeper.channel import Channel, ChannelError
from hpc_elastic.agent.keeper.own_states import OwnStates
from hpc_elastic.agent.keeper.sender import LOOKS_AFTER_BYTES, Sender
from hpc_elastic.agent.keeper.transfer import SendingRate
from hpc_elastic.state_memory import (
    ALLOCATED,
    COPY_EVERY,
    NO_COPIES,
    SLOTS,
    choose_slot,
    map_control,
    read_slots,
    slot_header,
)
from tests.agent.keeper.scene import PART, a_memory, state_in


class Rank:
    """A rank that saves as `worker.rank_state` does."""

    def __init__(self, size: int = 100) -> None:
        self.memory = a_memory()
        self.numbers = map_control(self.memory)
        self.content = bytes(size)

    def save(self, step: int, *, is_replicated: bool = False) -> None:
        with_memory = [slot for slot in range(SLOTS) if slot_header(self.numbers, slot)[ALLOCATED]]
        slot = choose_slot(read_slots(self.numbers), with_memory, self.numbers[COPY_EVERY])
        state_in(self.memory, slot, step, self.content, is_replicated=is_replicated)

    @property
    def steps(self) -> list[int]:
        return sorted(state.step for state in read_slots(self.numbers))


class OtherNode(Channel):
    """A keeper elsewhere that takes copies, during which something happens."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.copied: list[int] = []
        self.offered: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {"take": True, "every": 1}
        self.is_closed = False
        self.meanwhile = meanwhile

    def send(self, message: Any) -> None:
        if message.get("do") == "put":
            self.offered.append(message)
        elif message["is_whole"]:
            self.copied.append(self.offered[-1]["step"])

    def send_piece(self, piece: bytes | memoryview) -> None:
        self.meanwhile()

    def receive(self) -> Any:
        return self.answer

    def abort(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


class Scene:
    def __init__(self, *ranks: Rank, other: OtherNode | None = None) -> None:
        self.ranks = ranks or (Rank(), Rank())
        self.other = other or OtherNode()
        self.said: list[str] = []
        self.dials = 0
        own = OwnStates(attempt=1, part=PART, shared="* default", memories=[rank.memory for rank in self.ranks])
        self.sender = Sender(own, self.dial, pace=SendingRate(None), say=self.said.append)

    def dial(self) -> Channel:
        self.dials += 1
        return self.other

    def save(self, *steps: int) -> None:
        for step in steps:
            for rank in self.ranks:
                rank.save(step)

    @property
    def every(self) -> int:
        return int(self.ranks[0].numbers[COPY_EVERY])


def test_each_save_is_copied_once() -> None:
    scene = Scene()
    for step in (1, 2, 3):
        scene.save(step)
        scene.sender.look()
        scene.sender.look()
    assert scene.other.copied == [1, 1, 2, 2, 3, 3]  # a checksum of each rank's
    assert [offer["part"] for offer in scene.other.offered] == [PART] * 3
    assert scene.every == 1
    assert scene.dials == 1


def test_what_a_later_attempt_saves_is_not_sent_as_that_of_the_part_before() -> None:
    scene = Scene()
    scene.save(1)
    for rank in scene.ranks:
        state_in(rank.memory, 1, 2, rank.content, attempt=2)
    scene.sender.look()
    assert [(offer["attempt"], offer["step"]) for offer in scene.other.offered] == [(1, 1)]


def test_what_a_later_attempt_saves_is_not_given_as_that_of_the_part_before() -> None:
    rank = Rank()
    own = OwnStates(attempt=1, part=PART, shared="* default", memories=[rank.memory])
    state_in(rank.memory, 0, 2, rank.content, attempt=2)
    assert own.find(PART, (2, 2)) is None
    assert OwnStates(attempt=2, part=PART, shared="* default", memories=[rank.memory]).find(PART, (2, 2)) is not None


def test_a_state_that_one_local_rank_has_not_saved_yet_is_not_copied() -> None:
    scene = Scene()
    scene.save(1)
    scene.ranks[0].save(2)
    scene.sender.look()
    assert [offer["step"] for offer in scene.other.offered] == [1]


def test_a_state_that_is_the_same_on_all_ranks_is_not_copied() -> None:
    scene = Scene()
    scene.ranks[0].save(1, is_replicated=True)
    scene.sender.look()
    assert scene.other.offered == []


def test_fewer_saves_are_copied_if_some_are_missed() -> None:
    scene = Scene()
    scene.save(1)
    scene.sender.look()
    scene.save(2, 3, 4)  # between two looks, which may be chance
    scene.sender.look()
    assert (scene.every, scene.other.offered[-1]["step"]) == (1, 4)
    scene.save(5, 6, 7)
    for _ in range(5):
        scene.sender.look()
    assert (scene.every, scene.other.offered[-1]["step"]) == (2, 6)


def test_two_late_copies_that_do_not_follow_each_other_change_nothing() -> None:
    scene = Scene()
    for steps in ((1,), (2, 3), (4,), (5, 6), (7,)):
        scene.save(*steps)
        scene.sender.look()
    assert scene.every == 1
    assert scene.other.copied == [1, 1, 3, 3, 4, 4, 6, 6, 7, 7]


def test_fewer_saves_are_copied_if_the_next_one_is_there_before_the_copy_is_done() -> None:
    saves = iter(range(2, 1000))
    rank = Rank(size=2 * LOOKS_AFTER_BYTES)
    other = OtherNode()
    scene = Scene(rank, other=other)
    scene.save(1)
    other.meanwhile = lambda: scene.save(next(saves)) if len(other.offered) < 2 else None
    scene.sender.look()
    assert scene.every > 1
    assert other.is_closed  # the other side waits for the rest of what was overtaken
    assert other.copied == []


def test_what_copies_need_is_not_overwritten() -> None:
    """While all nodes copy each fourth save, the two newest of these stay, and the newest state of all."""
    rank = Rank()
    rank.numbers[COPY_EVERY] = 4
    for step in range(1, 15):
        rank.save(step)
    assert {8, 12, 14} <= set(rank.steps)


def test_each_how_manieth_save_is_copied_is_heard_from_the_other_node_and_told_to_it() -> None:
    scene = Scene()
    scene.other.answer = {"take": True, "every": 8}
    scene.save(1)
    scene.sender.look()
    assert [rank.numbers[COPY_EVERY] for rank in scene.ranks] == [8, 8]
    scene.other.answer = {"take": True, "every": 1}
    scene.save(*range(2, 10))
    scene.sender.look()
    assert scene.other.offered[-1]["step"] == 8
    assert scene.other.offered[-1]["every"] == 8
    assert scene.every == 8


def test_a_refused_copy_is_told_once() -> None:
    scene = Scene()
    scene.other.answer = {"take": False, "why": "there is no room", "every": 1}
    for step in (1, 2, 3):
        scene.save(step)
        scene.sender.look()
    assert len(scene.said) == 1
    assert scene.said == ["no copies of training states on another node: there is no room"]


def test_a_copy_that_the_other_node_takes_later_is_offered_again() -> None:
    scene = Scene()
    scene.other.answer = {"take": False, "is_later": True, "every": 1}
    scene.save(1)
    scene.sender.look()
    scene.other.answer = {"take": True, "every": 1}
    scene.sender.look()
    assert scene.other.copied == [1, 1]
    assert scene.said == []


def test_nothing_is_copied_where_a_rank_has_no_room_for_it() -> None:
    scene = Scene()
    scene.save(1)
    scene.ranks[1].numbers[NO_COPIES] = 1
    scene.sender.look()
    assert scene.other.offered == []


def test_another_node_that_is_gone_is_told_once_and_dialled_again() -> None:
    scene = Scene()
    scene.sender._ending = threading.Event()
    scene.save(1)
    is_there = [False, True]

    def dial() -> Channel:
        if not is_there.pop(0):
            raise ChannelError("node3: no answer in time")
        return scene.other

    scene.sender._dial = dial
    scene.sender.look(dials_again_s=0.0)
    scene.sender.look()
    assert scene.said == ["no copies of training states on another node: node3: no answer in time"]
    assert scene.other.copied == [1, 1]


def test_a_connection_that_was_closed_meanwhile_is_made_again_without_a_word() -> None:
    scene = Scene()
    scene.save(1)
    scene.sender.look()
    gone, scene.other = scene.other, OtherNode()

    def fail() -> None:
        raise ChannelError("the other side has closed the connection")

    gone.meanwhile = fail
    scene.save(2)
    scene.sender.look()
    scene.sender.look()
    assert gone.is_closed
    assert scene.other.copied == [2, 2]
    assert scene.said == []


@pytest.mark.parametrize("every", [0, 1, 2, 8])
def test_the_newest_state_is_never_overwritten(every: int) -> None:
    rank = Rank()
    rank.numbers[COPY_EVERY] = every
    for step in range(1, 40):
        before = rank.steps
        rank.save(step)
        assert not before or before[-1] in rank.steps
    assert len(rank.steps) == {0: 2, 1: 3}.get(every, 4)
