"""The agent's side of heartbeats: a memory for each attempt, and what it reads there."""

from __future__ import annotations

import os

from hpc_elastic.agent.workers.heartbeats import Heartbeats
from hpc_elastic.failures.stall import HeartbeatState
from hpc_elastic.heartbeat_memory import COUNT, SLOT_NUMBERS, STEP, TIME_NS, map_memory

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
