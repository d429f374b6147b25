"""Which start of the job claims an allocation, and who is told of it."""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.errors import FileSystemError, RunDirectoryError
from hpc_elastic.plan.roles import EntrypointPlan
from hpc_elastic.rundir import store
from hpc_elastic.rundir.records import (
    AllocationClaim,
    Endpoint,
)
from tests.agent.answers import Answers
from tests.agent.records.runs import HEAD, Runs, a_place, a_result
from tests.plans import make_run_plan


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


def test_who_claims_the_next_allocation_knows_the_heads_before_it_in_this_start(runs: Runs) -> None:
    runs.journal(a_place(node_id=1)).claim_allocation(HEAD)
    first, second = (runs.journal(a_place(node_id=number, restart_count=1)) for number in range(2))
    first.claim_allocation(HEAD)
    assert first.claim_next_allocation(HEAD, 2)
    assert first.heads_before == ()
    assert second.claim_next_allocation(Endpoint(address="10.0.0.2", port=1), 3)
    assert second.heads_before == ("node0",)


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


@pytest.mark.parametrize("content", ["", '{"allocation": 1, "job'])
def test_a_torn_claim_is_not_asked_for_without_end(runs: Runs, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    def link(source: str, target: str) -> None:
        tries.append(target)
        assert len(tries) < 3
        real_link(source, target)

    tries: list[str] = []
    runs.journal().claim_allocation(HEAD)
    Path(runs.layout.allocation(1)).write_text(content)
    real_link = os.link
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(FileSystemError, match=r"allocations/0001\.json is there and cannot be read"):
        runs.journal(a_place("43")).claim_allocation(HEAD)
    assert tries == [runs.layout.allocation(1)]


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


def test_an_older_start_is_told_of_a_new_one(runs: Runs) -> None:
    older = runs.journal()
    older.claim_allocation(HEAD)
    assert older.requests() == (None, None)
    runs.journal(a_place(restart_count=1)).claim_allocation(HEAD)
    assert older.requests() == (None, 2)


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
