"""Work that the file system refuses is tried again: how long, and what is said."""

from __future__ import annotations

import asyncio
import time

import pytest

from hpc_elastic.agent.records.retries import retry, retry_here
from hpc_elastic.errors import FileSystemError, RunDirectoryError


class Work:
    """Fails so often, and counts."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error or FileSystemError("cannot write /run/x: Input/output error")
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "done"

    async def later(self) -> str:
        return self()


@pytest.mark.long
@pytest.mark.parametrize("failures", [0, 1, 3])
def test_what_is_refused_is_done_again_and_said_once(failures: int) -> None:
    said: list[str] = []
    assert retry_here(Work(failures), say=said.append) == "done"
    assert asyncio.run(retry(Work(failures).later, say=said.append)) == "done"
    line = "cannot write /run/x: Input/output error; trying again for up to 30 s"
    assert said == ([line, line] if failures else [])


def test_an_answer_is_no_refusal() -> None:
    work = Work(1, RunDirectoryError("the run is over"))
    with pytest.raises(RunDirectoryError, match="the run is over"):
        retry_here(work, say=print)
    assert work.calls == 1


def test_the_last_refusal_is_raised_when_the_time_is_over() -> None:
    work = Work(10**6)
    with pytest.raises(FileSystemError):
        asyncio.run(retry(work.later, say=lambda _: None, within_s=0.1))
    assert work.calls > 1


@pytest.mark.long
def test_a_try_that_takes_longer_than_the_time_for_tries_has_another_one() -> None:
    work = Work(1)

    def takes_long() -> str:
        over = time.monotonic() + 0.2
        while time.monotonic() < over:
            pass
        return work()

    assert retry_here(takes_long, say=lambda _: None, within_s=0.1) == "done"


def test_nothing_is_tried_again_that_nobody_wants() -> None:
    work = Work(10**6)
    with pytest.raises(FileSystemError):
        asyncio.run(retry(work.later, say=print, is_wanted=lambda: False))
    assert work.calls == 1
