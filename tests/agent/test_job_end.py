"""How an agent ends the job of a batch script that is lost, or has it started again, as its last act."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from hpc_elastic.agent import job_end
from hpc_elastic.agent.job_end import _end_job, _has_lost_script, _leaves_to_script, see_to_job_end
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Leave, Level
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent.answers import Answers
from tests.plans import make_run_plan

# It notes each call and whether TERM would end it, and is refused as often as the file `refusals` has lines.
SCANCEL = """#!/bin/bash
grep SigIgn /proc/self/status >>"$STUBS/calls"
[ "$(wc -l <"$STUBS/calls")" -gt "$(wc -l <"$STUBS/refusals")" ] && exit
echo "scancel: error: Kill job error on job id $1: Unable to contact slurm controller (connect failure)" >&2
exit 1
"""


@pytest.fixture
def term_handler() -> Iterator[None]:
    """Restores what this process does at a TERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def scancel_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Puts a scancel on the path that is refused as often as the file `refusals` says; returns a look at its calls."""
    (tmp_path / "scancel").write_text(SCANCEL)
    (tmp_path / "scancel").chmod(0o755)
    (tmp_path / "refusals").touch()
    (tmp_path / "calls").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("STUBS", str(tmp_path))
    return lambda: (tmp_path / "calls").read_text().splitlines()


@pytest.mark.usefixtures("term_handler")
@pytest.mark.parametrize(("refusals", "calls", "warnings"), [(0, 1, 0), (2, 3, 1), (9, 4, 2)])
def test_ends_the_job_of_a_lost_script_although_the_controller_is_away(
    refusals: int, calls: int, warnings: int, tmp_path: Path, scancel_calls: Callable[[], list[str]]
) -> None:
    """Nobody else does it: all nodes of the job are paid for until its time limit."""
    (tmp_path / "refusals").write_text("no\n" * refusals)
    told: list[tuple[str, Level]] = []

    def say(text: str, level: Level = "info") -> None:
        told.append((text, level))

    _end_job(AN_ALLOCATION, Answers(), say, pauses_s=(0.0, 0.0, 0.0))
    masks = [int(line.split()[1], 16) for line in scancel_calls()]
    assert len(masks) == calls
    assert all(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)  # the job's end sends one to this process, too
    assert [level for _, level in told].count("warning") == warnings
    assert ("end it with `scancel 7`" in told[-1][0]) == (refusals > 3)


@pytest.mark.usefixtures("term_handler")
@pytest.mark.parametrize(
    ("answers", "may_be_requeued", "calls"),
    [((True,), False, 0), ((None,), False, 1), ((None, True), True, 0), ((None, False), True, 1), ((None,), True, 0)],
)
def test_ends_no_job_that_was_started_again(
    answers: tuple[bool | None, ...], may_be_requeued: bool, calls: int, scancel_calls: Callable[[], list[str]]
) -> None:
    """What runs under its number is another start's. Once Slurm was asked for one, it has to say that there is none."""
    questions = Answers(is_requeued=answers)
    _end_job(AN_ALLOCATION, questions, lambda *_: None, may_be_requeued=may_be_requeued, pauses_s=(0.0, 0.0))
    assert len(scancel_calls()) == calls


class Looks:
    """What Slurm says at each look: is the job over (None: it is silent), and has it the script's node."""

    def __init__(self, *looks: tuple[bool | None, bool]) -> None:
        self._looks = list(looks)
        self._has_node = True
        self.count = 0

    def is_over(self, job_id: str) -> bool | None:
        assert job_id == "7"
        is_over, self._has_node = self._looks[self.count]
        self.count += 1
        return is_over

    def is_requeued(self, job_id: str, restart_count: int) -> bool | None:
        raise AssertionError((job_id, restart_count))

    def dead_nodes(self, job_id: str, nodes: Collection[str]) -> frozenset[str]:
        assert (job_id, list(nodes)) == ("7", ["a"])
        return frozenset() if self._has_node else frozenset(nodes)


WORKS, OVER, WITHOUT_NODE, SILENT = (False, True), (True, True), (False, False), (None, True)


@pytest.mark.parametrize(
    ("looks", "is_left"),
    [
        ([WORKS, WORKS, WORKS, OVER], True),  # the script's `after` block took as long as that
        ([WORKS, WORKS, WORKS, WORKS], False),
        ([WORKS, WITHOUT_NODE], False),
        ([SILENT, SILENT, OVER], True),
    ],
)
def test_leaves_the_end_of_the_job_to_a_script_that_is_there_again_as_long_as_slurm_has_its_node(
    looks: list[tuple[bool | None, bool]], is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    answers = Looks(*looks)
    assert _leaves_to_script(AN_ALLOCATION, answers, lambda _: None, pauses_s=(0.0,) * 4) is is_left
    assert answers.count == len(looks)


def test_leaves_nothing_to_a_script_whose_node_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_LAUNCH_NODE_IPADDR", raising=False)
    assert not _leaves_to_script(AN_ALLOCATION, Looks(), lambda _: None)


AN_ALLOCATION = Allocation(
    job_id="7", restart_count=0, array_task=None, node_id=1, nodes=("a", "b"), is_local=False, time_left=None
)


@pytest.mark.parametrize(
    ("answers", "dead", "is_lost"),
    [
        ([True], (), False),  # an agent that is killed leaves its script
        ([True], ("a",), True),  # it has started again after Slurm had given it up
        ([False, False], (), True),
        ([False, True], (), False),  # it has started again: Slurm ends the job as its slurmd registers
    ],
)
def test_a_script_whose_agent_was_gone_is_lost_if_its_machine_is_too(
    answers: list[bool], dead: tuple[str, ...], is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1")
    monkeypatch.setattr(job_end, "_answers", lambda _: answers.pop(0))
    assert _has_lost_script(AN_ALLOCATION, Answers(dead=dead), within_s=0.0) is is_lost
    assert not answers or dead


def test_a_script_whose_node_slurm_does_not_name_is_not_taken_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_LAUNCH_NODE_IPADDR", raising=False)
    assert not _has_lost_script(AN_ALLOCATION, Answers(), within_s=0.0)


def see(
    tmp_path: Path,
    leave: Leave,
    questions: Answers,
    *,
    stands_by_s: float = 0.0,
    by: Literal["requeue", "chain"] = "requeue",
) -> Journal:
    """Have an agent that leaves so see to the end of its job, whose batch script's node does not answer."""
    small = make_run_plan(tmp_path)
    plan = replace(small, requeue=replace(small.requeue, by=by))
    journal = Journal(RunLayout(str(tmp_path)), plan, AN_ALLOCATION, questions=questions)
    journal.allocation = 1
    (tmp_path / "requests.jsonl").touch()
    (tmp_path / "agents").mkdir(exist_ok=True)
    if leave.exit_code == ExitCode.REQUEUE:
        journal.next_start.note("preempted")
    see_to_job_end(leave, plan, AN_ALLOCATION, journal, questions, stands_by_s=stands_by_s)
    return journal


OVER_NOW = Leave(exit_code=0, cause="every rank exited 0")
STOPPED = Leave(exit_code=int(ExitCode.REQUEUE), cause="preempted")


@pytest.mark.usefixtures("term_handler")
@pytest.mark.parametrize(
    ("leave", "dead", "calls"),
    [
        (OVER_NOW, (), 0),
        (replace(OVER_NOW, ends_job=True), (), 1),
        (replace(OVER_NOW, stands_by=2), (), 1),
        (replace(OVER_NOW, looks_for_script=True), ("a",), 1),
        (replace(OVER_NOW, looks_for_script=True), (), 0),
    ],
    ids=["it is the script's", "told to", "stood by in vain", "script lost", "script there"],
)
def test_an_agent_that_has_left_ends_the_job_if_that_is_left_to_it(
    leave: Leave,
    dead: tuple[str, ...],
    calls: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scancel_calls: Callable[[], list[str]],
) -> None:
    monkeypatch.delenv("SLURM_LAUNCH_NODE_IPADDR", raising=False)
    see(tmp_path, leave, Answers(dead=dead))
    assert len(scancel_calls()) == calls


@pytest.mark.usefixtures("term_handler")
@pytest.mark.parametrize(
    ("by", "refusal", "is_requeued", "asked", "calls"),
    [
        ("requeue", "", (False,), ["7"], 0),  # Slurm ends this start of it
        ("requeue", "", (True,), [], 0),
        ("requeue", "no", (False,), ["7"], 1),
        ("requeue", "no", (False, False, False, True), ["7"], 0),
        ("chain", "", (False,), ["{}/job.sh after 7"], 1),  # another job waits for its end
        ("requeue", "disabled", (False,), ["7", "{}/job.sh after 7"], 1),
    ],
    ids=["requeued", "requeued before", "refused", "requeued after all", "chained", "chained for want of a requeue"],
)
def test_an_agent_ends_the_start_of_a_job_that_slurm_does_not_end_itself(
    by: Literal["requeue", "chain"],
    refusal: str,
    is_requeued: tuple[bool | None, ...],
    asked: list[str],
    calls: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scancel_calls: Callable[[], list[str]],
) -> None:
    """Nobody would, as its batch script is lost: its nodes would be paid for without work until its time limit."""
    monkeypatch.delenv("SLURM_LAUNCH_NODE_IPADDR", raising=False)
    questions = Answers(is_requeued=is_requeued)
    questions.is_disabled = refusal == "disabled"
    questions.refusal = "" if questions.is_disabled else refusal
    see(tmp_path, replace(STOPPED, ends_job=True), questions, by=by)
    assert questions.started_again == [each.format(tmp_path) for each in asked]
    assert len(scancel_calls()) == calls


STANDS_BY = """
import signal, sys
from pathlib import Path
from tests.agent.answers import Answers
from tests.agent.test_job_end import OVER_NOW, replace, see
signal.signal(signal.SIGTERM, signal.SIG_IGN)
see(Path(sys.argv[1]), replace(OVER_NOW, stands_by=1), Answers(), stands_by_s=600.0)
"""


@pytest.mark.long
def test_an_agent_that_stands_by_goes_with_the_job(tmp_path: Path, scancel_calls: Callable[[], list[str]]) -> None:
    """Slurm's TERM, with which the job ends or starts again, tells it that there is nothing left to do."""
    command = [sys.executable, "-c", STANDS_BY, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert "another agent sees to the end of job 7" in agent.stdout.readline()
        agent.terminate()
        assert agent.wait(30.0) == -signal.SIGTERM
    assert not scancel_calls()
