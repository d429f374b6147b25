"""The run directory as an agent uses it: claims of allocations and attempts, results, requests, progress."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from hpc_elastic.agent.records import chain
from hpc_elastic.agent.records.journal import LEVELS, Journal, stamp
from hpc_elastic.errors import FileSystemError, RunDirectoryError
from hpc_elastic.membership.actions import Note
from hpc_elastic.membership.decisions import History, SilentEnds
from hpc_elastic.membership.ranks import Seat
from hpc_elastic.membership.rounds import HeadSettings, open_attempt
from hpc_elastic.plan.launch_plan import StatePlan
from hpc_elastic.plan.roles import EntrypointPlan
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import (
    AllocationClaim,
    AttemptClaim,
    Charged,
    Endpoint,
    RunResultRecord,
    RunState,
    Spend,
    World,
)
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent.answers import Answers
from tests.plans import make_run_plan

HEAD = Endpoint(address="10.0.0.1", port=20000)


def a_place(job_id: str = "42", *, restart_count: int = 0, node_id: int = 0) -> Allocation:
    return Allocation(
        job_id=job_id,
        restart_count=restart_count,
        array_task=None,
        node_id=node_id,
        nodes=("node0", "node1"),
        is_local=False,
    )


def must_not_ask(job_id: str) -> bool | None:
    raise AssertionError(f"asked about job {job_id}")


class Runs:
    """Journals of one run directory, each as another agent has it."""

    def __init__(self, root: Path) -> None:
        self.layout = RunLayout(root)

    def journal(
        self, place: Allocation | None = None, *, is_over: Callable[[str], bool | None] = must_not_ask, **plan: Any
    ) -> Journal:
        return Journal(
            self.layout,
            replace(make_run_plan(self.layout.root), **plan),
            place or a_place(),
            questions=Answers(is_over=is_over),
        )


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "a run")


def an_attempt(history: History | None = None, node: str = "node0") -> tuple[AttemptClaim, World]:
    settings = HeadSettings(
        run="run",
        node=node,
        allocation=1,
        expected=("node0",),
        min_nodes=1,
        max_nodes=1,
        join_timeout_s=1,
        lease_s=1,
        started="",
    )
    seat = Seat(node="node0", node_id=0, agent=HEAD, store_port=1, workers=2, role="default")
    return open_attempt(settings, history or History(), [seat], "first start")


def a_result(exit_code: int = 0, cause: str = "every rank exited 0") -> RunResultRecord:
    return RunResultRecord(
        run="run",
        state=RunState.SUCCEEDED,
        exit_code=exit_code,
        reason="succeeded",
        cause=cause,
        attempts=1,
        restarts=0,
        failures={},
        return_values={},
        nodes=("node0",),
        started=None,
        ended="",
        written_by="node0",
    )


# Allocations.


def test_the_first_agent_of_a_start_claims_it_and_the_others_find_its_address(runs: Runs) -> None:
    first = runs.journal().claim_allocation(HEAD)
    second = runs.journal(a_place(node_id=1)).claim_allocation(Endpoint(address="10.0.0.2", port=1))
    assert (first.is_ours, second.is_ours) == (True, False)
    assert second.claim == first.claim
    assert (second.claim.allocation, second.claim.head) == (1, HEAD)


def test_nothing_is_found_before_the_claim(runs: Runs) -> None:
    journal = runs.journal()
    assert journal.find_allocation() is None
    claimed = runs.journal().claim_allocation(HEAD)
    assert journal.find_allocation() == claimed.claim


def test_a_requeue_claims_the_next_allocation_without_asking_the_scheduler(runs: Runs) -> None:
    runs.journal().claim_allocation(HEAD)
    requeued = runs.journal(a_place(restart_count=1))
    assert requeued.find_allocation() is None
    assert requeued.claim_allocation(HEAD).claim.allocation == 2
    assert requeued.allocation == 2


def test_an_agent_of_an_older_start_that_comes_late_claims_nothing(runs: Runs) -> None:
    """Its claim would tell the new start to leave."""
    runs.journal(a_place(restart_count=1)).claim_allocation(HEAD)
    with pytest.raises(RunDirectoryError, match="allocation 1 of this run is of a later start of job 42"):
        runs.journal().claim_allocation(HEAD)
    assert os.listdir(runs.layout.allocations) == ["0001.json"]


def test_another_job_claims_the_next_if_the_earlier_one_is_over(runs: Runs) -> None:
    runs.journal().claim_allocation(HEAD)
    later = runs.journal(a_place("43"), is_over=lambda job: job == "42")
    assert later.claim_allocation(HEAD).claim.allocation == 2


def test_a_local_job_of_another_machine_may_be_alive(runs: Runs) -> None:
    """Its processes cannot be looked up here."""
    runs.journal(a_place("local-1-1")).claim_allocation(HEAD)
    path = Path(runs.layout.allocation(1))
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "login2"}))
    with pytest.raises(RunDirectoryError, match="job local-1-1, cannot be asked about on"):
        runs.journal(a_place("local-2-2"), is_over=lambda _: True).claim_allocation(HEAD)


@pytest.mark.parametrize(("is_over", "words"), [(False, "is still alive"), (None, "cannot be asked about")])
def test_a_second_live_allocation_is_refused(runs: Runs, is_over: bool | None, words: str) -> None:
    runs.journal().claim_allocation(HEAD)
    with pytest.raises(RunDirectoryError, match=f"allocation 1 of this run, job 42, {words}"):
        runs.journal(a_place("43"), is_over=lambda _: is_over).claim_allocation(HEAD)


def test_a_run_that_is_over_is_neither_claimed_nor_waited_for(runs: Runs) -> None:
    runs.journal().write_result(a_result())
    with pytest.raises(RunDirectoryError, match="is over"):
        runs.journal().claim_allocation(HEAD)
    with pytest.raises(RunDirectoryError, match="is over"):
        runs.journal().find_allocation()


def test_a_claim_that_cannot_be_read_is_an_error_not_a_second_claim(runs: Runs) -> None:
    runs.journal().claim_allocation(HEAD)
    Path(runs.layout.allocation(1)).write_text('{"allocation": "one"}')
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        runs.journal(a_place("43")).claim_allocation(HEAD)


def test_a_claim_that_was_made_although_its_answer_was_an_error_is_ones_own(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, sync = runs.journal(), os.fsync
    fails = [True]

    def fail_once_in_a_folder(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) and fails.pop():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once_in_a_folder)
    with pytest.raises(FileSystemError):
        journal.claim_allocation(HEAD)
    fails.append(False)
    monkeypatch.undo()
    assert journal.claim_allocation(HEAD).is_ours
    # Another agent of the same address, started anew: it did not make this claim, whoever did.
    assert not runs.journal().claim_allocation(HEAD).is_ours


def test_the_claim_after_a_lost_head_is_ones_own_too(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.journal().claim_allocation(HEAD)
    journal, link = runs.journal(), os.link

    def link_and_fail(*arguments: str) -> None:
        link(*arguments)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", link_and_fail)
    monkeypatch.setattr(store, "_sync_directory", fail)
    with pytest.raises(FileSystemError):
        journal.claim_next_allocation(HEAD, 1)
    monkeypatch.undo()
    assert journal.claim_next_allocation(HEAD, 1)
    assert not runs.journal().claim_next_allocation(replace(HEAD, port=HEAD.port + 1), 1)


# Attempts.


def test_an_attempt_is_claimed_once(runs: Runs) -> None:
    claim, world = an_attempt()
    claim = stamp(claim)
    is_ours, digest = runs.journal().claim_attempt(claim, world)
    assert is_ours
    assert len(digest) == 64
    assert runs.journal().claim_attempt(claim, world) == (True, digest), "by the same agent, which had no answer"
    assert runs.journal().claim_attempt(*an_attempt(node="node1")) == (False, "")
    assert json.loads(Path(runs.layout.world(1)).read_text())["head"] == "node0"
    assert json.loads(Path(runs.layout.claim(1)).read_text())["time"]


def test_the_history_is_the_latest_claims(runs: Runs) -> None:
    assert runs.journal().history() == History()
    runs.journal().claim_attempt(*an_attempt())
    after = History(attempts=1, spend=Spend(restarts=1), failure_signature="s", same_failures=1, progress="p")
    runs.journal().claim_attempt(*an_attempt(after))
    assert runs.journal().history() == replace(after, attempts=2)


def test_what_was_charged_in_an_allocation_that_ended_before_the_next_claim_is_in_the_history(runs: Runs) -> None:
    journal = runs.journal()
    journal.claim_allocation(HEAD)
    claim, world = an_attempt()
    assert journal.claim_attempt(stamp(claim), world)[0]
    charged = Charged(attempt=1, spend=Spend(restarts=2), failure_signature="ValueError", same_failures=2, step=7)
    journal.next_start.note("preempted", charged=charged)
    journal.next_start.note("preempted")  # by the script, which knows of nothing
    again = runs.journal(a_place(restart_count=1))
    again.claim_allocation(HEAD)
    history = again.history()
    assert (history.attempts, history.spend.restarts, history.same_failures, history.step) == (1, 2, 2, 7)
    later, world = an_attempt(replace(history, spend=Spend(restarts=3)))
    assert again.claim_attempt(stamp(later), world)[0]
    assert runs.journal(a_place(restart_count=2)).history().spend == Spend(restarts=3)


def test_a_start_that_slurm_alone_has_started_again_has_ended_silently(runs: Runs) -> None:
    journal = runs.journal()
    assert not journal.next_start.silent_ends().are_there
    journal.claim_allocation(HEAD)
    claim, world = an_attempt()
    assert journal.claim_attempt(stamp(claim), world)[0]
    assert not journal.next_start.silent_ends().are_there
    journal.note(Note(name="steps.done", message="step 7", attempt=1, metadata={"step": 7}), 1)
    again = runs.journal(a_place(restart_count=1))
    again.claim_allocation(HEAD)
    assert again.next_start.silent_ends() == SilentEnds(has_worked=True, step=7)
    third = runs.journal(a_place(restart_count=2))
    assert third.next_start.silent_ends() == SilentEnds(has_worked=True, idle=1, step=7)


def test_an_end_that_was_told_is_not_silent_nor_is_one_of_another_job(runs: Runs) -> None:
    journal = runs.journal()
    journal.claim_allocation(HEAD)
    claim, world = an_attempt()
    assert journal.claim_attempt(stamp(claim), world)[0]
    other = runs.journal(a_place("43"), is_over=lambda job_id: True)
    assert not other.next_start.silent_ends().are_there
    journal.next_start.note("preempted")
    assert not runs.journal(a_place(restart_count=1)).next_start.silent_ends().are_there


def test_a_start_that_claimed_two_allocations_has_ended_once(runs: Runs) -> None:
    journal = runs.journal()
    journal.claim_allocation(HEAD)
    assert journal.claim_next_allocation(HEAD, after=1)
    again = runs.journal(a_place(restart_count=1))
    assert again.next_start.silent_ends() == SilentEnds(idle=1)
    journal.next_start.note("preempted")
    assert not again.next_start.silent_ends().are_there


def test_the_budget_is_written_for_people_and_never_read(runs: Runs) -> None:
    claim, world = an_attempt()
    runs.journal().claim_attempt(claim, world)
    runs.journal().write_budget(claim)
    assert json.loads(Path(runs.layout.budget).read_text())["attempt"] == 1
    Path(runs.layout.budget).write_text('{"spend": {"restarts": 99}}')
    assert runs.journal().history().spend.restarts == 0


# Results.


def test_the_result_is_created_once_and_the_second_writer_learns_the_first(runs: Runs) -> None:
    assert runs.journal().write_result(a_result()) == (0, "every rank exited 0")
    assert runs.journal().write_result(a_result(7, "node1 was lost")) == (0, "every rank exited 0")
    assert Path(runs.layout.exit_code).read_text() == "0\n"
    assert json.loads(Path(runs.layout.result).read_text())["ended"]


# For people, and from them.


def test_a_stop_request_is_found_behind_other_lines(runs: Runs) -> None:
    journal = runs.journal()
    assert journal.requests()[0] is None
    os.makedirs(runs.layout.root)
    lines = ['{"kind": "notice", "by": "x", "time": ""}', '["no request"]', '{"kind": "stop", "by": "ada@login1"', ""]
    Path(runs.layout.requests).write_text("\n".join(lines))
    assert journal.requests()[0] is None
    with open(runs.layout.requests, "a") as file:
        file.write('{"kind": "stop", "by": "ada@login1", "time": "now"}\n')
    assert journal.requests()[0] == "ada@login1"


def test_an_older_start_is_told_of_a_new_one(runs: Runs) -> None:
    older = runs.journal()
    older.claim_allocation(HEAD)
    assert older.requests() == (None, None)
    runs.journal(a_place(restart_count=1)).claim_allocation(HEAD)
    assert older.requests() == (None, 2)


@pytest.mark.parametrize("hidden", ["requests", "allocations"])
def test_a_new_start_is_found_by_its_line_or_by_its_claim(runs: Runs, hidden: str) -> None:
    """NFS may hide a name; a file server in trouble may refuse a line."""
    older = runs.journal()
    older.claim_allocation(HEAD)
    runs.journal(a_place(restart_count=1)).claim_allocation(HEAD)
    os.remove(runs.layout.requests if hidden == "requests" else runs.layout.allocation(2))
    assert older.requests() == (None, 2)


def test_nodes_of_one_start_that_claim_one_allocation_after_the_other_are_no_new_start(runs: Runs) -> None:
    first = runs.journal()
    first.claim_allocation(HEAD)
    runs.journal(a_place(node_id=1)).claim_next_allocation(Endpoint(address="10.0.0.2", port=1), 1)
    assert first.requests() == (None, None)


def test_the_older_start_is_told_although_the_new_ones_first_head_died_at_its_claim(runs: Runs) -> None:
    older, first = runs.journal(), runs.journal(a_place(restart_count=1))
    older.claim_allocation(HEAD)
    first.claim_allocation(HEAD)
    os.remove(runs.layout.requests)  # it had come as far as that
    second = runs.journal(a_place(restart_count=1, node_id=1))
    assert second.claim_next_allocation(Endpoint(address="10.0.0.2", port=1), 2)
    for number in (2, 3):
        os.remove(runs.layout.allocation(number))  # NFS hides new names
    assert older.requests() == (None, 2)
    assert first.requests() == (None, None), "it may live after all, and is of the same start"


def test_a_claim_that_seemed_to_fail_is_told_to_the_older_start(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = runs.journal(), runs.journal(a_place(restart_count=1))
    older.claim_allocation(HEAD)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(store, "_sync_directory", fail)
    with pytest.raises(FileSystemError):
        newer.claim_allocation(HEAD)
    monkeypatch.undo()
    assert newer.claim_allocation(HEAD).is_ours
    os.remove(runs.layout.allocation(2))
    assert older.requests() == (None, 2)


def test_an_allocation_that_came_to_nothing_does_not_keep_the_run_from_ending(runs: Runs) -> None:
    """Another node took the head for lost, which opened its first attempt all the same."""
    first = runs.journal()
    first.claim_allocation(HEAD)
    runs.journal(a_place(node_id=1)).claim_next_allocation(Endpoint(address="10.0.0.2", port=1), 1)
    failed = replace(a_result(7, "node1 was lost"), state=RunState.FAILED)
    assert first.write_result(failed) == 2, "its head may open the first attempt"
    assert first.claim_attempt(*an_attempt()) == (True, ANY)
    assert first.write_result(failed) == (7, "node1 was lost")


def test_an_attempt_of_an_older_start_is_void(runs: Runs) -> None:
    older = runs.journal()
    older.claim_allocation(HEAD)
    runs.journal(a_place(restart_count=1)).claim_allocation(HEAD)
    claim, world = an_attempt()
    assert older.claim_attempt(claim, world) == (False, ANY)


def test_an_older_start_ends_the_run_by_success_only(runs: Runs) -> None:
    older = runs.journal()
    older.claim_allocation(HEAD)
    runs.journal(a_place(restart_count=1)).claim_allocation(HEAD)
    assert older.write_result(replace(a_result(7, "node1 was lost"), state=RunState.FAILED)) == 2
    assert older.write_result(a_result()) == (0, "every rank exited 0")


def test_a_failure_is_written_whatever_was_claimed_in_vain_in_the_same_start(runs: Runs) -> None:
    """Else nobody could end the run: neither a failure without restarts nor a person."""
    journal = runs.journal()
    journal.claim_allocation(HEAD)
    assert runs.journal(a_place(node_id=1)).claim_next_allocation(Endpoint(address="10.0.0.2", port=1), 1)
    failed = replace(a_result(1, "rank 0 failed"), state=RunState.FAILED)
    assert journal.write_result(replace(failed, attempts=0)) == 2, "another head gathers, and may open the attempt"
    journal.claim_attempt(*an_attempt())
    assert journal.write_result(failed) == (1, "rank 0 failed")


@pytest.mark.parametrize("hidden", ["requests", "allocations"])
def test_an_older_start_neither_opens_nor_ends_anything_if_line_or_claim_says_so(runs: Runs, hidden: str) -> None:
    older = runs.journal()
    older.claim_allocation(HEAD)
    runs.journal(a_place(restart_count=1)).claim_allocation(HEAD)
    os.remove(runs.layout.requests if hidden == "requests" else runs.layout.allocation(2))
    assert older.claim_attempt(*an_attempt()) == (False, ANY)
    assert older.write_result(replace(a_result(7, "node1 was lost"), state=RunState.FAILED)) == 2


def test_a_failure_is_not_written_beside_an_attempt_that_the_folder_does_not_show(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that claimed an allocation in vain has looked at the folder all the time, which NFS may remember."""
    runs.journal().claim_allocation(HEAD)
    runs.journal().claim_attempt(*an_attempt())
    monkeypatch.setattr(chain, "list_numbers", lambda *_, **__: [])
    failed = replace(a_result(6, "1 of 2 nodes joined"), state=RunState.FAILED, attempts=0)
    assert isinstance(runs.journal().write_result(failed), AttemptClaim)


def test_a_folder_as_it_was_before_the_new_start_does_not_send_its_agents_away(runs: Runs) -> None:
    """As NFS shows it for half a minute to who joined by a connection."""
    runs.journal().claim_allocation(HEAD)
    member = runs.journal(a_place(restart_count=1, node_id=1))
    member.allocation = 2
    assert member.read_records().started_again is None
    member.allocation = 0
    assert member.read_records().started_again == 1


def test_a_start_that_left_before_it_opened_an_attempt_vouches_for_no_other(runs: Runs) -> None:
    older = runs.journal()
    older.claim_allocation(HEAD)
    older.claim_attempt(*an_attempt())
    second, third = runs.journal(a_place(restart_count=1)), runs.journal(a_place(restart_count=2))
    second.claim_allocation(HEAD)
    second.note_all_left()
    third.claim_allocation(HEAD)
    assert third.may_predecessor_live()
    older.note_all_left()
    assert not third.may_predecessor_live()


@pytest.mark.parametrize("trouble", ["missing", "a folder", "torn"])
def test_a_new_start_waits_where_nobody_can_say_who_has_left(runs: Runs, trouble: str) -> None:
    older, newer = runs.journal(), runs.journal(a_place(restart_count=1))
    older.claim_allocation(HEAD)
    older.note_all_left()
    newer.claim_allocation(HEAD)
    line = Path(runs.layout.requests).read_text()
    os.remove(runs.layout.requests)
    if trouble == "a folder":
        os.mkdir(runs.layout.requests)
    elif trouble == "torn":
        Path(runs.layout.requests).write_text(line[:20])
    assert newer.may_predecessor_live()


def test_a_new_start_waits_for_agents_of_the_older_one_unless_all_have_left(runs: Runs) -> None:
    older = runs.journal()
    older.claim_allocation(HEAD)
    assert not older.may_predecessor_live()
    newer = runs.journal(a_place(restart_count=1))
    newer.claim_allocation(HEAD)
    assert newer.may_predecessor_live()
    older.note_all_left()
    assert not newer.may_predecessor_live()


class Unbuffered(io.RawIOBase):
    """A file as Python's standard streams are on top of with -u or PYTHONUNBUFFERED."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.writes.append(bytes(data))
        return len(data)


def test_a_line_is_one_write_so_that_nothing_a_worker_wrote_comes_before_its_end(runs: Runs) -> None:
    journal, file = runs.journal(), Unbuffered()
    journal.log = io.TextIOWrapper(file, write_through=True)  # type: ignore[type-var]  # as sys.stdout is there
    journal.say("as a member")
    (written,) = file.writes
    assert written.endswith(b"node0: as a member\n")


def test_only_the_head_speaks_into_the_scripts_output(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    os.makedirs(runs.layout.root)
    journal = runs.journal()
    journal.say("as a member")
    journal.is_head = True
    journal.say("as the head")
    assert Path(runs.layout.script_output("42")).read_text().endswith("node0: as the head\n")
    assert "as a member" in capsys.readouterr().out


def test_what_a_worker_wrote_cannot_control_the_terminal_of_who_reads_the_logs(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    os.makedirs(runs.layout.root)
    journal = runs.journal()
    journal.is_head = True
    journal.say("rank 0 failed: \x1b[2J\udcff\n2026-01-02 hpc-elastic node1: it succeeded")
    for text in (capsys.readouterr().out, Path(runs.layout.script_output("42")).read_text()):
        assert text.endswith("rank 0 failed: \\x1b[2J\\udcff\\n2026-01-02 hpc-elastic node1: it succeeded\n")


@pytest.mark.parametrize(
    ("log_level", "heard"),
    [
        ("error", "error"),
        ("warning", "error warning"),
        ("info", "error warning info"),
        ("debug", "error warning info debug"),
    ],
)
def test_a_line_is_said_if_the_log_level_asks_for_as_much(
    runs: Runs, capsys: pytest.CaptureFixture[str], log_level: str, heard: str
) -> None:
    os.makedirs(runs.layout.root)
    journal = runs.journal(log_level=log_level)
    journal.is_head = True
    for level in LEVELS:
        journal.say(f"<{level}>", level)
    texts = (capsys.readouterr().out, Path(runs.layout.script_output("42")).read_text())
    assert [re.findall("<(.*)>", text) for text in texts] == [heard.split()] * 2


def test_an_event_is_a_line_of_the_nodes_own_file(runs: Runs) -> None:
    journal = runs.journal()
    for number in range(2):
        note = Note(name="worker.failed", message="it failed", attempt=number, metadata={"rank": number})
        journal.note(note, 1000 + number)
    lines = [json.loads(line) for line in Path(runs.layout.events("node0")).read_text().splitlines()]
    assert [(line["time_ns"], line["name"], line["attempt"], line["metadata"]) for line in lines] == [
        (1000, "worker.failed", 0, {"rank": 0}),
        (1001, "worker.failed", 1, {"rank": 1}),
    ]


# Progress.


def test_there_is_no_progress_to_see_without_a_pattern(runs: Runs) -> None:
    assert runs.journal().progress() is None


@pytest.mark.parametrize("folder", ["plain", "a [b] folder", "costs $5"])
def test_progress_is_another_digest_when_a_file_changes(runs: Runs, tmp_path: Path, folder: str) -> None:
    work = tmp_path / folder
    (work / "checkpoints").mkdir(parents=True)
    journal = runs.journal(workdir=str(work).replace("$", "$$"), progress_file="checkpoints/*.pt")
    seen = [journal.progress()]
    (work / "checkpoints" / "1.pt").write_text("a")
    seen.append(journal.progress())
    seen.append(journal.progress())
    (work / "checkpoints" / "1.pt").write_text("ab")
    seen.append(journal.progress())
    assert seen[1] == seen[2]
    assert len(set(seen)) == 3


def test_progress_is_looked_for_where_the_workers_work(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    journal = runs.journal(workdir="${SCRATCH}/${SUB}", env={"SUB": "x"}, progress_file="*.pt")
    before = journal.progress()
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "1.pt").write_text("a")
    assert journal.progress() != before


KEPT = {"attempt": 1, "step": 2, "place": "0/1 0/1 default", "length": 3, "crc": 0}


def keep(layout: RunLayout, ended: int, *names: str) -> Path:
    """Leave the files of a state after an attempt."""
    folder = Path(layout.kept_states(ended))
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(json.dumps(KEPT))
    return folder


def test_what_killed_writers_have_left_is_removed_when_a_newer_attempt_is_the_latest(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    layout, journal = runs.layout, runs.journal()
    keep(layout, 1, "00000.json", "00000.state")
    keep(layout, 2, ".00000.0123456789ab.tmp")
    folder = keep(layout, 3, ".00000.0123456789ab.tmp", "00001.state")
    assert journal.kept_states(3) == ()
    assert os.listdir(layout.memory) == ["0003"]
    assert f"{folder} has no training state that is complete; all ranks load from disk" in capsys.readouterr().out


def test_nothing_is_said_of_states_where_there_are_none(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.journal().kept_states(3) == ()
    assert capsys.readouterr().out == ""


def test_a_state_of_another_run_that_is_gone_is_said(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(tmp_path / "other")
    journal = runs.journal(state=StatePlan(load_from=other))
    assert journal.kept_states(0) == ()
    assert f"there is no directory {other}; all ranks load from disk" in capsys.readouterr().out


def test_what_another_run_has_left_is_there_for_a_successor_before_anything_newer_is_saved(
    runs: Runs, tmp_path: Path
) -> None:
    """The other run may have gone on meanwhile: what the first head had found counts."""
    other = RunLayout(tmp_path / "other")
    Path(other.attempts, "0001").mkdir(parents=True)
    Path(other.claim(1)).write_text("{}")
    keep(other, 1, "00000.json", "00000.state")
    journal = runs.journal(state=StatePlan(load_from=other.root))
    journal.claim_allocation(HEAD)
    (found,) = journal.kept_states(0)
    assert journal.claim_attempt(*an_attempt())[0]
    shutil.rmtree(other.root)
    for _ in range(2):  # a successor, and the one after it
        assert runs.journal(state=StatePlan(load_from=other.root)).kept_states(1, is_over=False) == (found,)
    assert runs.journal(a_place(restart_count=1)).kept_states(1) == ()
    assert not os.path.exists(runs.layout.memory), "nobody knows what an attempt has done that ended without a word"


def test_what_the_allocation_before_has_left_is_there_for_a_successor(runs: Runs) -> None:
    journal = runs.journal()
    journal.claim_allocation(HEAD)
    assert journal.claim_attempt(*an_attempt())[0]
    keep(runs.layout, 1, "00000.json", "00000.state")
    again = runs.journal(a_place(restart_count=1))
    again.claim_allocation(HEAD)
    found = again.kept_states(1)
    claim, world = an_attempt(History(attempts=1))
    assert again.claim_attempt(replace(claim, allocation=2), world)[0]
    assert runs.journal(a_place(restart_count=1)).kept_states(2, is_over=False) == found != ()


def test_states_are_removed_when_the_run_has_succeeded_and_the_script_can_read_its_exit_code(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = runs.journal()
    folder = keep(runs.layout, 1, "00000.json", "00000.state")
    remove = os.unlink
    seen: list[bool] = []

    def unlink(path: str) -> None:
        if path.startswith(str(folder)):
            seen.append(os.path.exists(runs.layout.exit_code))
        remove(path)

    monkeypatch.setattr(os, "unlink", unlink)
    journal.write_result(a_result())
    assert seen == [True, True]
    assert not os.path.exists(runs.layout.memory)


def test_a_script_that_has_changed_since_the_start_before_is_told_once_and_recorded(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    plan = make_run_plan(
        runs.layout.root, workdir=str(tmp_path), entrypoint=EntrypointPlan(kind="script", target="train.py", args=())
    )

    def start(count: int) -> AllocationClaim:
        journal = Journal(runs.layout, plan, a_place(restart_count=count), questions=Answers(is_over=lambda _: True))
        return journal.claim_allocation(HEAD).claim

    script.write_text("first")
    assert start(0).changed_scripts == ()
    assert start(1).changed_scripts == ()
    script.write_text("second")
    assert start(2).changed_scripts == ("train.py",)
    assert start(2).changed_scripts == ("train.py",), "another agent of that start reads the same claim"
    assert start(3).changed_scripts == ()
    line = "train.py has changed since the job's last start: workers run what is there now (snapshot: true keeps it)"
    assert capsys.readouterr().out.count(line) == 1
    events = [json.loads(text) for text in Path(runs.layout.events("node0")).read_text().splitlines()]
    assert [(event["name"], event["allocation"]) for event in events] == [("scripts.changed", 3)]
