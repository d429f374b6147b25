"""A run says in one line, beside its job in the queue, how it goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpc_elastic.agent.records import job_comment
from hpc_elastic.agent.records.job_comment import describe_run, keep_comment
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.layout import RunLayout
from tests.useful_time.made_runs import MadeAllocation, MadeAttempt, MadeRun, Telling


def write_run(root: Path, told: Telling) -> RunLayout:
    layout = RunLayout(str(root))

    def write(path: str, record: object) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(record))

    for claim in told.allocations:
        write(layout.allocation(claim["allocation"]), claim)
    for claim in told.attempts:
        write(layout.claim(claim["attempt"]), claim)
    for node in {event["node"] for event in told.events}:
        lines = [json.dumps(event) + "\n" for event in told.events if event["node"] == node]
        Path(layout.events(node)).parent.mkdir(parents=True, exist_ok=True)
        Path(layout.events(node)).write_text("".join(lines))
    return layout


def made(*attempts: MadeAttempt) -> Telling:
    return Telling(MadeRun(allocations=(MadeAllocation(attempts=attempts),), step_s=1.0))


def test_the_line_names_attempt_useful_time_and_the_last_cause(tmp_path: Path) -> None:
    told = made(MadeAttempt(steps=90), MadeAttempt(steps=50))
    layout = write_run(tmp_path, told)
    line = describe_run(layout, now=told.end)
    assert line is not None
    assert line.startswith("hpc-elastic: attempt 2, useful 92 % of 2m30s")
    assert line.endswith(", after: it failed")


def test_there_is_no_line_before_there_is_an_attempt(tmp_path: Path) -> None:
    assert describe_run(RunLayout(str(tmp_path / "none")), now=1.0) is None
    layout = write_run(tmp_path, made(MadeAttempt()))
    Path(layout.claim(1)).write_text("[")
    assert describe_run(layout, now=1.0) is None


def test_a_cause_of_any_text_makes_one_bounded_line(tmp_path: Path) -> None:
    told = made(MadeAttempt(), MadeAttempt())
    told.attempts[-1]["root_cause"]["line"] = "a\nb\x1b[31m" + "x" * 1000
    line = describe_run(write_run(tmp_path, told), now=told.end)
    assert line is not None
    assert len(line) == 200
    assert line.isprintable()


class Clock:
    """Counts the pauses instead of waiting for them, and ends the task after so many."""

    def __init__(self, looks: int, then: Callable[[int], None] = lambda _: None) -> None:
        self.pauses: list[float] = []
        self._looks, self._then = looks, then

    async def sleep(self, seconds: float) -> None:
        if len(self.pauses) == self._looks:
            raise asyncio.CancelledError
        self.pauses.append(seconds)
        self._then(len(self.pauses))


def keep(run_dir: Path, told: list[Any], journal: Any, clock: Clock) -> None:
    plan = cast("LaunchPlan", SimpleNamespace(run_dir=str(run_dir)))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(keep_comment(cast("Journal", journal), plan, "7", told.append, sleep=clock.sleep))


def test_only_the_head_tells_it_and_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []
    scheduler = SimpleNamespace(set_comment=lambda job_id, text: calls.append((job_id, text)))
    monkeypatch.setattr(job_comment, "from_node", lambda _: scheduler)
    write_run(tmp_path, made(MadeAttempt()))
    journal = SimpleNamespace(is_head=False)

    def become_head(looks: int) -> None:
        journal.is_head = looks >= 3

    said: list[Any] = []
    clock = Clock(6, become_head)
    keep(tmp_path, said, journal, clock)
    assert clock.pauses == [5, 5, 5, 300, 5, 300]
    assert [job for job, _ in calls] == ["7", "7"]
    assert said == []


def test_what_the_scheduler_refuses_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "scontrol").write_text("#!/bin/sh\necho 'scontrol: error: Access/permission denied' >&2\nexit 1\n")
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    write_run(tmp_path / "run", made(MadeAttempt()))
    said: list[Any] = []
    keep(tmp_path / "run", said, SimpleNamespace(is_head=True), Clock(4))
    assert said == [
        "metrics.comment: scontrol could not set the comment of job 7: Access/permission denied",
    ]
