"""A run that restarts again and again holds no more than it did: `make soak-restarts` does it a thousand times."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.soak.readings import Reading, creeping, grown, read, uneven
from tests.soak.restarts import Plan, play

KINDS = {"agent": 2, "guard": 2, "worker": 2}
A_READING = Reading(
    cycle=50,
    processes=Counter(KINDS),
    descriptors=Counter(agent=20, guard=6),
    threads=Counter(agent=8, guard=2),
    mappings=Counter(agent=400, guard=100),
    memory_kib=Counter(agent=40_000, guard=12_000),
    temporary=frozenset({"torchinductor_ada"}),
    states_kib={7: 4096},
    run_files=500,
    run_bytes=1_000_000,
)


@pytest.mark.local
@pytest.mark.timeout(240)
@pytest.mark.variant(of="test_the_others_go_on_if_the_head_is_killed")
@pytest.mark.parametrize("with_gloo", [False, True])
def test_restarts_leave_nothing_behind(door: Door, with_gloo: bool) -> None:
    """So few cycles say nothing of memory, whose pages are handed out many at a time."""
    play(door, Plan(cycles=15, warm_up=6, every=5, with_gloo=with_gloo, memory_growth=0.1))


@pytest.mark.local
@pytest.mark.timeout(240)
@pytest.mark.variant(of="test_the_others_go_on_if_the_head_is_killed")
def test_restarts_with_states_leave_nothing_behind_and_go_on_at_the_last_step(door: Door) -> None:
    play(door, Plan(cycles=15, warm_up=6, every=5, with_states=True, memory_growth=0.1))


def after(cycle: int, **changes: object) -> Reading:
    return replace(A_READING, cycle=cycle, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("last", "leak"),
    [
        (after(1000, processes=Counter({**KINDS, "zombie": 1})), "processes: {'agent': 2, 'guard': 2, 'worker': 2}"),
        (after(1000, processes=Counter({**KINDS, "worker": 3})), "'worker': 3}"),
        (after(1000, descriptors=Counter(agent=21, guard=6)), "descriptors of agent: 20 have become 21"),
        (after(1000, threads=Counter(agent=8, guard=3)), "threads of guard: 2 have become 3"),
        (after(1000, mappings=Counter(agent=400, guard=600)), "mappings of guard: 100 have become 600"),
        (
            after(1000, memory_kib=Counter(agent=40_521, guard=12_000)),
            "memory: 52000 KiB have become 52521, over 1% more",
        ),
        (after(1000, states_kib={7: 4096, 8: 2048}), "states: 1 memories of 4096 KiB have become 2 of 6144 KiB"),
        (after(1000, states_kib={9: 4098}), "states: 1 memories of 4096 KiB have become 1 of 4098 KiB"),
        (after(1000, shared_memory=frozenset({"torch_1"})), "shared memory that nobody holds: torch_1"),
        (after(1000, temporary=frozenset({"torchinductor_ada", "tmp1"})), "temporary files that nobody holds: tmp1"),
    ],
)
def test_what_has_grown_is_said(last: Reading, leak: str) -> None:
    assert not list(grown(A_READING, after(1000, memory_kib=Counter(agent=40_520, guard=12_000)), memory=0.01))
    (said,) = grown(A_READING, last, memory=0.01)
    assert leak in said


def test_memory_that_creeps_is_said_although_others_have_much_and_a_single_step_is_not() -> None:
    def readings(*agent_kib: int) -> list[Reading]:
        memories = [Counter({"agent": kib, "fork server": 400_000}) for kib in agent_kib]
        return [after(50 + 100 * number, memory_kib=memory) for number, memory in enumerate(memories)]

    assert not list(creeping(readings(20_000, 20_050, 20_850, 20_850, 20_860), memory=0.01))
    (said,) = creeping(readings(20_000, 20_060, 20_120, 20_180, 20_240), memory=0.01)
    assert said == "memory of agent: 20000 KiB, and 0.60 KiB more each cycle"


def test_a_run_directory_that_grows_by_more_and_more_is_said() -> None:
    readings = [after(50), after(60, run_files=600, run_bytes=2_000_000)]
    even = [*readings, after(70, run_files=700, run_bytes=3_050_000)]
    assert not list(uneven(even))
    uneven_ones = [*readings, after(70, run_files=711, run_bytes=3_200_000)]
    assert list(uneven(uneven_ones)) == [
        "files of the run directory: 10.0 a cycle have become 11.1",
        "bytes of the run directory: 100000.0 a cycle have become 120000.0",
    ]


def test_a_reading_sees_descriptors_of_this_very_moment_and_shared_memory_that_nobody_holds(tmp_path: Path) -> None:
    (tmp_path / "left").touch()

    def look() -> Reading:
        return read(1, root=os.getpid(), run=tmp_path, temporary=tmp_path, since=0)

    memory = SharedMemory(create=True, size=64)
    try:
        assert memory.name not in look().shared_memory
        memory.close()
        assert memory.name in look().shared_memory
    finally:
        memory.unlink()
    seen = look()
    assert (seen.run_files, set(seen.temporary)) == (1, {"left"})
    assert seen.processes["worker"] >= 1
