"""The agent's side of heartbeats: a memory for each attempt, and what it reads there."""

from __future__ import annotations

import os

from hpc_elastic.agent.workers.heartbeats import Heartbeats
from hpc_elastic.failures.stall import HeartbeatState
from hpc_elastic.heartbeat_memory import (
    BEATS_FROM,
    COUNT,
    NO_NOTICE,
    POLLS,
    POLLS_FROM,
    REASON,
    REASONS,
    SLOT_NUMBERS,
    STEP,
    STOPS_NS,
    TIME_NS,
    WAIT,
    map_memory,
)
from hpc_elastic.membership.notices import NoticeCounts, NoticeGiven
from hpc_elastic.rundir.records import NOTICE_REASONS, NoticeReason

S = 10**9


def test_reads_nothing_before_the_first_attempt() -> None:
    assert Heartbeats().read() == {}


def test_reads_each_rank_and_its_age_by_the_monotonic_clock() -> None:
    now = [100 * S]
    heartbeats = Heartbeats(lambda: now[0])
    memory = heartbeats.begin([4, 5])[0].memory
    numbers = map_memory(memory)
    numbers[SLOT_NUMBERS + STEP], numbers[SLOT_NUMBERS + TIME_NS], numbers[SLOT_NUMBERS + COUNT] = 17, 98 * S, 3
    silent = HeartbeatState(step=None, age_s=None, count=0)
    assert heartbeats.read() == {4: silent, 5: HeartbeatState(step=17, age_s=2.0, count=3)}
    now[0] += S // 2
    assert heartbeats.read()[5].age_s == 2.5
    heartbeats.close()


def test_a_worker_of_an_older_attempt_does_not_beat_for_its_successor() -> None:
    heartbeats = Heartbeats()
    numbers = map_memory(heartbeats.begin([0])[0].memory)
    heartbeats.begin([0])
    numbers[TIME_NS] = numbers[COUNT] = 1
    assert heartbeats.read()[0].count == 0
    heartbeats.close()


def test_a_hundred_attempts_leave_no_descriptor() -> None:
    heartbeats = Heartbeats()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        heartbeats.begin([0, 1])
    heartbeats.close()
    assert len(os.listdir("/proc/self/fd")) == before


def notice(seconds_left: float | None = 60.0, reason: NoticeReason = "preemption") -> NoticeGiven:
    return NoticeGiven(reason=reason, seconds_left=seconds_left, by="ada@login")


def test_a_notice_is_written_for_every_rank_and_named_later() -> None:
    heartbeats = Heartbeats(lambda: 100 * S)
    numbers = map_memory(heartbeats.begin([4, 5], attempt=2)[0].memory)
    numbers[POLLS], numbers[SLOT_NUMBERS + POLLS], numbers[COUNT] = 3, 7, 9
    heartbeats.hold_for_notice(2, notice())
    for first in (0, SLOT_NUMBERS):
        assert (numbers[first + POLLS_FROM], numbers[first + BEATS_FROM]) == (WAIT, WAIT)
        assert (REASONS[numbers[first + REASON]], numbers[first + STOPS_NS]) == ("preemption", 160 * S)
    assert heartbeats.count_polls(2) == NoticeCounts(polls=7, beats=9)
    heartbeats.name_notice(2, NoticeCounts(polls=8, beats=10))
    for first in (0, SLOT_NUMBERS):
        assert (numbers[first + POLLS_FROM], numbers[first + BEATS_FROM]) == (8, 10)
    heartbeats.close()


def test_a_notice_that_comes_before_the_workers_is_theirs() -> None:
    heartbeats = Heartbeats()
    heartbeats.begin([0], attempt=1)
    heartbeats.hold_for_notice(2, notice(None))
    assert heartbeats.count_polls(2) == NoticeCounts(polls=0, beats=0)
    numbers = map_memory(heartbeats.begin([0], attempt=2)[0].memory)
    assert (numbers[POLLS_FROM], numbers[STOPS_NS]) == (WAIT, 0)
    assert map_memory(heartbeats.begin([0], attempt=3)[0].memory)[POLLS_FROM] == NO_NOTICE
    heartbeats.close()


def test_a_second_notice_changes_what_is_said_and_makes_nobody_wait_again() -> None:
    heartbeats = Heartbeats(lambda: 100 * S)
    numbers = map_memory(heartbeats.begin([0], attempt=1)[0].memory)
    heartbeats.hold_for_notice(1, notice(reason="operator"))
    heartbeats.name_notice(1, NoticeCounts(polls=4, beats=1))
    heartbeats.hold_for_notice(1, notice(5.0))
    assert (numbers[POLLS_FROM], numbers[STOPS_NS]) == (4, 105 * S)
    assert REASONS[numbers[REASON]] == "preemption"
    heartbeats.close()


def test_the_reasons_in_memory_are_those_of_the_records() -> None:
    assert REASONS == NOTICE_REASONS
