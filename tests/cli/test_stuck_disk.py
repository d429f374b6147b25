"""What a command says that waits for a disk or a file server."""

from __future__ import annotations

import pytest

from hpc_elastic.cli.stuck_disk import LOOK_EVERY_S, LOOKS, NOTE, read_main_state, watch_disk


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("D" * LOOKS, [NOTE]),
        ("D" * (LOOKS - 1) + "R" + "D" * (LOOKS - 1), []),
        ("SRSRS" + "D" * LOOKS + "D" * LOOKS, [NOTE]),
        ("S" * 100, []),
    ],
    ids=["stuck", "one look at work", "stuck later, told once", "asleep"],
)
def test_a_wait_for_a_disk_is_told_once_if_it_lasts(states: str, expected: list[str]) -> None:
    left = iter(states)
    slept: list[float] = []
    said: list[str] = []
    watch_disk(said.append, read_state=lambda: next(left, ""), sleep=slept.append)
    assert said == expected
    assert set(slept) == {LOOK_EVERY_S}


def test_the_main_thread_that_asks_is_running() -> None:
    assert read_main_state() == "R"
