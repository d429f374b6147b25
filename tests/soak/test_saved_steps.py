"""The campaign of kills between saves: it plays a few, and sees what it is there to see."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is no torch")


from hpc_elastic.state_memory import ATTEMPT, LIMIT, SEQUENCE, create_memory, map_control, slot_header
from hpc_elastic.worker.rank_state import RankState
from tests.faults.play import prepare_door
from tests.soak.saved_steps import RANKS, is_half_copied, kill_savers, lost_steps


@pytest.mark.local
@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.parametrize("options", [[], ["--replicated"], ["--ddp"]], ids=["sharded", "replicated", "ddp"])
def test_no_step_is_lost_and_the_weights_are_the_same(tmp_path: Path, options: list[str]) -> None:
    assert kill_savers(prepare_door(tmp_path), 5, 1, options).wrong == ()


def write(folder: Path, begun: list[dict[int, int]], saved: list[list[int]]) -> None:
    lines = [
        json.dumps({"attempt": attempt, "rank": rank, "first": first})
        for attempt, firsts in enumerate(begun, 1)
        for rank, first in firsts.items()
    ]
    (folder / "begun").write_text("\n".join(lines))
    for rank in RANKS:
        steps = [f"{attempt} {step}" for attempt, lasts in enumerate(saved, 1) for step in range(1, lasts[rank] + 1)]
        (folder / f"saved.{rank}").write_text("\n".join(steps))


@pytest.mark.parametrize(
    ("firsts", "wrong"),
    [
        ([5, 5, 5, 5], ""),
        ([6, 6, 6, 6], ""),  # all may have copied it, and one was killed before it could say so
        ([4, 4, 4, 4], "attempt 2 began at step 4, and all ranks had saved 5"),
        ([0, 0, 0, 0], "attempt 2 began at step 0, and all ranks had saved 5"),
        ([7, 7, 7, 7], "attempt 2 began at step 7, and all ranks had saved 5"),
        ([5, 6, 5, 5], "attempt 2 began at several steps: [5, 6]"),
    ],
)
def test_a_lost_step_is_seen(tmp_path: Path, firsts: list[int], wrong: str) -> None:
    write(tmp_path, [dict.fromkeys(RANKS, 0), dict(zip(RANKS, firsts, strict=True))], [[6, 5, 6, 6], [0, 0, 0, 0]])
    assert lost_steps(tmp_path, kills=1) == ([wrong] if wrong else [])


def test_a_kill_in_the_middle_of_a_save_is_seen() -> None:
    descriptor = create_memory(0)
    numbers = map_control(descriptor)
    numbers[LIMIT], numbers[ATTEMPT] = 1 << 30, 1
    rank, seen = RankState(descriptor, descriptor), [is_half_copied(numbers)]
    for step in (1, 2):
        rank.save(step, "a state", is_replicated=False)
        seen.append(is_half_copied(numbers))
    header = slot_header(numbers, 0)
    header[SEQUENCE] = 0  # the first that a save does
    assert [*seen, is_half_copied(numbers)] == [False, False, False, True]
    os.close(descriptor)
