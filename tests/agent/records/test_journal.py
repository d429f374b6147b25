"""The run directory as an agent uses it: claims of attempts, results, requests, training states, progress."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest

from hpc_elastic.agent.records import chain
from hpc_elastic.agent.records.journal import stamp
from hpc_elastic.codec import to_json
from hpc_elastic.errors import FileSystemError
from hpc_elastic.membership.actions import Note
from hpc_elastic.membership.decisions import History, SilentEnds
from hpc_elastic.plan.launch_plan import StatePlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import (
    AttemptClaim,
    Charged,
    Endpoint,
    Request,
    RunState,
    Spend,
)
from hpc_elastic.rundir.shared_lines import append_shared_line
from tests.agent.records.runs import HEAD, Runs, a_place, a_result, an_attempt
from tests.membership.script import a_failure
from tests.nfs_client import NfsClient


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


@pytest.mark.parametrize("content", ["", '{"attempt": 1, "al'])
def test_a_torn_claim_of_an_attempt_is_an_error_that_names_it(runs: Runs, content: str) -> None:
    assert runs.journal().claim_attempt(*an_attempt())[0]
    Path(runs.layout.claim(1)).write_text(content)
    with pytest.raises(FileSystemError, match=r"attempts/0001/claim\.json is there and cannot be read"):
        runs.journal(a_place("43")).claim_attempt(*an_attempt(node="node1"))
    assert not Path(runs.layout.proposed_world(1, "node1")).exists()


def test_who_has_opened_an_attempt_says_that_it_is_there_and_others_read_it(runs: Runs) -> None:
    head, other = runs.journal(), runs.journal(a_place(node_id=1))
    head.claim_attempt(*an_attempt())
    assert other.presence(1) is None
    for number in (1, 2):
        head.tell_presence(1, number)
        said = other.presence(1)
        assert said is not None
        assert (said.attempt, said.head, said.number) == (1, "node0", number)
    other.allocation += 1  # another start of the job, or another head of this one, has to do with others
    assert (head.presence(1), other.presence(1)) == (None, None)


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


def test_an_nfs_client_that_has_looked_for_the_result_finds_it_as_soon_as_another_machine_has_written_it(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, here, elsewhere = NfsClient(runs.layout.root, monkeypatch), runs.journal(), runs.journal()
    assert here.claim_attempt(*an_attempt())[0]
    assert here.find_result() is None
    with client.written_elsewhere():
        elsewhere.write_result(a_result())
    assert not os.path.exists(runs.layout.result), "the kernel remembers that it was not there"
    assert here.find_result() is not None


@pytest.mark.parametrize("looked", [True, False])
def test_no_attempt_begins_after_a_result_that_an_nfs_client_might_hide(
    looked: bool, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, here, elsewhere = NfsClient(runs.layout.root, monkeypatch), runs.journal(), runs.journal()
    assert here.claim_attempt(*an_attempt())[0]
    if looked:
        assert here.find_result() is None
    assert not os.path.exists(runs.layout.result)
    with client.written_elsewhere():
        elsewhere.write_result(a_result())
    assert here.claim_attempt(*an_attempt(History(attempts=1)))[0] is False
    assert here.write_result(a_result(7, "node1 was lost")) == (0, "every rank exited 0")


def test_the_result_of_a_run_of_which_many_ranks_failed_at_length_has_the_beginnings_of_their_messages(
    runs: Runs,
) -> None:
    """With all of them it has 88 MB for 10,000 ranks."""
    failures = {str(rank): a_failure(rank, message="KeyError: " + "x" * 8000) for rank in range(200)}
    runs.journal().write_result(replace(a_result(1, "rank 0 failed"), failures=failures))
    assert 500_000 < os.path.getsize(runs.layout.result) < 1_200_000


# From people.


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


@pytest.mark.parametrize("restart_count", [0, 1])
@pytest.mark.parametrize("requeue", [False, True])
def test_a_stop_with_notice_is_heard_by_whoever_is_head_of_a_start_whose_nodes_have_claimed_two_allocations(
    requeue: bool, restart_count: int, runs: Runs
) -> None:
    """People name the latest one: its head is at work, or has joined that of the one before."""
    if restart_count:
        runs.journal().claim_allocation(HEAD)
        send_stop(runs, "of the start before", allocation=1, requeue=True)
    first = runs.journal(a_place(restart_count=restart_count))
    claimed = first.claim_allocation(HEAD).claim.allocation
    second = runs.journal(a_place(restart_count=restart_count, node_id=1))
    assert second.claim_next_allocation(Endpoint(address="10.0.0.2", port=1), claimed)
    send_stop(runs, "now", allocation=second.allocation, requeue=requeue)
    for head in (first, second):
        assert head.requests() == (None, None), "it is not to stop at once"
        assert [each.id for each in head.notices] == ["now"]


@pytest.mark.parametrize("is_announced", [True, False])
@pytest.mark.parametrize("requeue", [False, True])
def test_a_stop_with_notice_before_another_claim_of_the_start_is_heard_by_the_next_head(
    requeue: bool, is_announced: bool, runs: Runs
) -> None:
    """Who makes the second claim announces the start again, for the head before may have died before it did."""
    runs.journal().claim_allocation(HEAD)
    send_stop(runs, "of the start before", allocation=1, requeue=True)
    size = os.path.getsize(runs.layout.requests)
    first = runs.journal(a_place(restart_count=1))
    claimed = first.claim_allocation(HEAD).claim.allocation
    if not is_announced:
        os.truncate(runs.layout.requests, size)
    send_stop(runs, "now", allocation=claimed, requeue=requeue)
    second = runs.journal(a_place(restart_count=1, node_id=1))
    assert second.claim_next_allocation(Endpoint(address="10.0.0.2", port=1), claimed)
    for head in (first, second):
        assert head.requests() == (None, None), "it is not to stop at once"
        assert [each.id for each in head.notices] == ["now"]


def send_stop(runs: Runs, name: str, *, allocation: int, requeue: bool) -> None:
    os.makedirs(runs.layout.root, exist_ok=True)
    stop = Request(kind="stop", by="ada", time="", id=name, seconds_left=60.0, allocation=allocation, requeue=requeue)
    append_shared_line(runs.layout.requests, to_json(stop))


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
    assert member.read_records(needs_world=True).started_again is None
    member.allocation = 0
    assert member.read_records(needs_world=True).started_again == 1


def test_who_comes_when_the_head_has_left_for_another_start_reads_that_until_there_is_an_attempt(runs: Runs) -> None:
    head, late = runs.journal(), runs.journal(a_place(node_id=1))
    head.claim_allocation(HEAD)
    assert late.read_records(needs_world=True).left_for == ""
    head.next_start.note("node_lost", ["node1"])
    assert late.read_records(needs_world=True).left_for == "node_lost"
    head.claim_attempt(*an_attempt())  # then others may go on without the head that has said so
    assert late.read_records(needs_world=True).left_for == ""


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
