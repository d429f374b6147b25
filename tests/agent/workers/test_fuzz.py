"""Any error file gives a failure that can be told; the mutations find what would not."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.agent.workers.error_files import settle_error_file
from hpc_elastic.agent.workers.failures import record_failure
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.last_word import Word
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import FailureRecord
from tests.agent.workers import fuzz
from tests.tiers import variants


@pytest.mark.long
@pytest.mark.parametrize("count", [200, *variants(3000, of="test_every_error_file_gives_a_failure_that_can_be_told")])
def test_every_error_file_gives_a_failure_that_can_be_told(tmp_path: Path, count: int) -> None:
    for seed in range(count):
        fuzz.play(seed, str(tmp_path))


def without_cleaning(layout: RunLayout, order: WorkerOrder, exitcode: int, failing: Word | None) -> FailureRecord:
    return record_failure(layout, order, node="node2", role="default", pid=fuzz.PID, exitcode=exitcode, timestamp=1.0)


def with_its_message_as_it_is(
    layout: RunLayout, order: WorkerOrder, exitcode: int, failing: Word | None
) -> FailureRecord:
    failure = fuzz.fail(layout, order, exitcode, failing)
    data = json.loads(Path(layout.error(2, 5)).read_bytes())["message"]
    object.__setattr__(failure, "message", data["message"] if isinstance(data, dict) else data)
    return failure


def with_its_time_as_it_is(layout: RunLayout, order: WorkerOrder, exitcode: int, failing: Word | None) -> FailureRecord:
    failure = fuzz.fail(layout, order, exitcode, failing)
    told: Any = json.loads(Path(layout.error(2, 5)).read_bytes()).get("time_ns", time.time_ns())
    object.__setattr__(failure, "timestamp", told / 1e9)
    return failure


def with_a_strict_reader(layout: RunLayout, order: WorkerOrder, exitcode: int, failing: Word | None) -> FailureRecord:
    json.loads(Path(layout.error(2, 5)).read_bytes())
    settle_error_file(layout, order, pid=fuzz.PID, exitcode=exitcode, failing=failing)
    return record_failure(layout, order, node="node2", role="default", pid=fuzz.PID, exitcode=exitcode, timestamp=1.0)


@pytest.mark.long
@pytest.mark.parametrize(
    "worse", [without_cleaning, with_its_message_as_it_is, with_its_time_as_it_is, with_a_strict_reader]
)
def test_the_mutations_find_an_agent_that_takes_what_it_reads(tmp_path: Path, worse: fuzz.Fail) -> None:
    assert any(is_found(seed, str(tmp_path), worse) for seed in range(3000))


def is_found(seed: int, folder: str, worse: fuzz.Fail) -> bool:
    try:
        fuzz.play(seed, folder, fail=worse)
    except (AssertionError, ValueError, OverflowError, RecursionError, TypeError, KeyError):
        return True
    return False
