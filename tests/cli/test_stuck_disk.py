"""What a command says that waits for a disk or a file server."""

from __future__ import annotations

import os

import pytest

from hpc_elastic.cli.stuck_disk import LOOK_EVERY_S, LOOKS, NOTE, read_main_state, watch_disk, watched_disk
from tests.slurm_sandbox.sandbox import wait_until


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
    waited: list[float] = []
    said: list[str] = []

    def is_over_within(seconds: float) -> bool:
        waited.append(seconds)
        return False

    watch_disk(said.append, is_over_within, read_state=lambda: next(left, ""))
    assert said == expected
    assert set(waited) == {LOOK_EVERY_S}


def test_nothing_is_told_of_a_command_that_is_over() -> None:
    said: list[str] = []
    watch_disk(said.append, lambda _: True, read_state=lambda: "D")
    assert not said


def test_the_watch_ends_with_its_command() -> None:
    """A program that called the command line a thousand times had a thousand threads that looked each second."""
    before = len(os.listdir("/proc/self/task"))
    for _ in range(20):
        with watched_disk():
            pass
    wait_until(lambda: len(os.listdir("/proc/self/task")) <= before, "the threads have ended")


def test_the_main_thread_that_asks_is_running() -> None:
    assert read_main_state() == "R"
