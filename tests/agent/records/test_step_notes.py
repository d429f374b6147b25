"""The notes of steps: dense at first, rarer later, the last one whatever the time, none twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hpc_elastic.agent.records.step_notes import StepNotes
from hpc_elastic.failures.stall import HeartbeatState
from hpc_elastic.membership.actions import Note

SECOND = 1_000_000_000


@dataclass(order=True)
class Call:
    """A call that is due at a time."""

    at: float
    function: Callable[[], None] = field(compare=False)
    calls: list[Call] = field(compare=False)

    def cancel(self) -> None:
        self.calls.remove(self)


class Clock:
    """A time that is moved on, and the calls that are due."""

    def __init__(self) -> None:
        self.now = 100.0
        self.calls: list[Call] = []

    def later(self, delay: float, function: Callable[[], None]) -> Call:
        call = Call(self.now + delay, function, self.calls)
        self.calls.append(call)
        return call

    def move_to(self, at: float) -> None:
        while self.calls and min(self.calls).at <= at:
            call = min(self.calls)
            self.calls.remove(call)
            self.now = call.at
            call.function()
        self.now = at


class Steps:
    """A node of two ranks; rank 1 is half a second behind, and each does a step a second from 102 s on."""

    def __init__(self) -> None:
        self.clock, self.notes, self.until = Clock(), list[Note](), 1e9
        self.steps = StepNotes(
            self.read,
            self.notes.append,
            later=self.clock.later,
            now=lambda: self.clock.now,
            now_ns=lambda: int(self.clock.now * SECOND),
        )

    def read(self) -> dict[int, HeartbeatState]:
        return {rank: self._state(102.0 + 0.5 * rank) for rank in (0, 1)}

    def _state(self, first: float) -> HeartbeatState:
        now = min(self.clock.now, self.until)
        if now < first:
            return HeartbeatState(step=None, age_s=None, count=0)
        done = int(now - first)
        age_s = self.clock.now - (first + done)
        return HeartbeatState(step=7 + done, age_s=age_s, count=done, first_step=7, first_age_s=self.clock.now - first)


def test_the_first_note_has_the_first_step_and_later_ones_have_the_furthest() -> None:
    node = Steps()
    node.steps.begin(3, is_traced=True)
    node.clock.move_to(104.7)
    assert [note.metadata for note in node.notes] == [
        {"step": 7, "step_time_ns": 102 * SECOND, "first_step": 7, "first_time_ns": 102 * SECOND},
        {"step": 8, "step_time_ns": 103 * SECOND},
        {"step": 9, "step_time_ns": 104 * SECOND},
    ]
    assert {(note.name, note.attempt) for note in node.notes} == {("steps.done", 3)}


def test_a_day_has_a_hundred_notes_or_so() -> None:
    node = Steps()
    node.steps.begin(1, is_traced=True)
    node.clock.move_to(100 + 86400)
    assert 50 < len(node.notes) < 150


def test_another_node_notes_only_the_last_step() -> None:
    node = Steps()
    node.steps.begin(1, is_traced=False)
    node.clock.move_to(150.2)
    assert node.notes == []
    node.steps.end()
    node.steps.end()
    (note,) = node.notes
    assert (note.metadata["step"], note.metadata["first_step"]) == (55, 7)


def test_a_step_is_not_noted_twice_and_the_end_ends_the_notes() -> None:
    node = Steps()
    node.until = 105.0
    node.steps.begin(1, is_traced=True)
    node.clock.move_to(120)
    node.steps.end()
    node.clock.move_to(140)
    assert [note.metadata["step"] for note in node.notes] == [7, 8, 9, 10]


def test_without_heartbeats_nothing_is_noted() -> None:
    node = Steps()
    node.until = 0.0
    node.steps.begin(1, is_traced=True)
    node.clock.move_to(130)
    node.steps.end()
    assert node.notes == []
