"""Nodes that the next start of a job is to avoid: which are excluded, and what is asked of Slurm for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.scheduler.protocol import Exclusion
from hpc_elastic.scheduler.questions import SUBMIT_TRIES, JobQuestions

# Slurm as far as it is asked here: `excluded` has what the job excludes, `spare` what the partition can spare.
SLURM = """#!/bin/bash
cd {folder} || exit 1
echo "$(basename "$0") $*" >>asked
case "$(basename "$0") $*" in
    squeue*Reservation*) cat outlook ;;
    squeue*) [ -e excluded ] || { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
        cat excluded ;;
    "sbatch --test-only"*) [[ " $(cat spare) " == *" ${2#--exclude=} "* ]] || {
        echo "allocation failure: Requested node configuration is not available" >&2; exit 1; } ;;
    sbatch*) [ ! -s silent ] || { sed -i 1d silent; exec sleep 60; }
        [ ! -e unreserved ] || [[ "$*" == *" --reservation= "* ]] || {
            echo "sbatch: error: Batch job submission failed: Requested reservation is invalid" >&2; exit 1; }
        echo 43 ;;
    scontrol\\ requeue*) [ ! -e disabled ] || { cat disabled >&2; exit 1; } ;;
    scontrol\\ --oneliner\\ show\\ reservation*) echo "EndTime=2026-11-23T07:22:00 Flags=SPEC_NODES" ;;
    scontrol\\ update*) [ ! -e refuses ] || { echo "Access denied for job 42" >&2; exit 1; } ;;
esac
"""


class FakeSlurm:
    """Programs on PATH in Slurm's place, with what they were asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("squeue", "sbatch", "scontrol"):
            (folder / name).write_text(SLURM.replace("{folder}", str(folder)))
            (folder / name).chmod(0o755)
        self.excludes("")
        self.can_spare()

    def excludes(self, nodes: str) -> None:
        (self._folder / "excluded").write_text(f"{nodes}|\n")

    def can_spare(self, *lists: str) -> None:
        (self._folder / "spare").write_text(" ".join(lists))

    def has_no_reservation(self) -> None:
        (self._folder / "unreserved").touch()

    def refuses_to_update(self) -> None:
        (self._folder / "refuses").touch()

    def runs_in_reservation_since(self, minute: int) -> None:
        """Set the minute of the hour in which the job has started, 10 s before it is asked about; it ends at 22."""
        times = f"1:00:00|0:10|2026-11-23T07:{minute:02}:00|2026-11-23T08:{minute:02}:00"
        (self._folder / "outlook").write_text(f"RUNNING|0|{times}|N/A|course|None|\n")

    def refuses_to_requeue(self, words: str) -> None:
        (self._folder / "disabled").write_text(f"{words}\n")

    def answers_no_submission(self, times: int) -> None:
        (self._folder / "silent").write_text("once\n" * times)

    def does_not_answer(self) -> None:
        (self._folder / "excluded").unlink()

    def asked(self) -> list[str]:
        return (self._folder / "asked").read_text().splitlines()

    def updates(self) -> list[str]:
        return [line for line in self.asked() if line.startswith("scontrol update")]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return FakeSlurm(folder)


def without(*nodes: str, earlier: tuple[str, ...] = ()) -> Exclusion:
    return Exclusion(script="/tmp/job.sh", nodes=nodes, earlier=earlier)


def test_a_job_that_starts_again_is_kept_from_nodes_once_it_waits(slurm: FakeSlurm) -> None:
    slurm.can_spare("node1,node2")
    said: list[str] = []
    assert JobQuestions(said.append).start_again("42", without("node1", "node2")) == ""
    assert said == ["the next start, job 42, is kept from node1, node2"]
    assert slurm.asked()[0] == "scontrol requeue 42"  # which must not wait for anything
    assert slurm.asked()[-1] == "scontrol update JobId=42 ExcNodeList=node1,node2"


def test_nodes_that_the_user_excludes_stay_excluded(slurm: FakeSlurm) -> None:
    slurm.excludes("gpu[7-8]")
    slurm.can_spare("gpu7,gpu8,node1")
    JobQuestions().start_again("42", without("node1"))
    assert slurm.updates() == ["scontrol update JobId=42 ExcNodeList=gpu7,gpu8,node1"]


def test_a_node_that_was_avoided_for_an_earlier_start_is_free_again(slurm: FakeSlurm) -> None:
    slurm.excludes("gpu7,node[1-2]")
    JobQuestions().start_again("42", without(earlier=("node1", "node2")))
    assert slurm.updates() == ["scontrol update JobId=42 ExcNodeList=gpu7"]


def test_a_job_that_could_never_start_without_the_nodes_may_get_them_again(slurm: FakeSlurm) -> None:
    said: list[str] = []
    assert JobQuestions(said.append).start_again("42", without("node1", "node2")) == ""
    assert slurm.updates() == []
    (line,) = said
    assert line.startswith("the next start, job 42, may get node1, node2 again: the job could not start without them: ")
    assert line.endswith("Requested node configuration is not available")


def test_the_node_that_matters_most_is_left_out_alone_if_not_all_can_be_spared(slurm: FakeSlurm) -> None:
    slurm.can_spare("node2")
    JobQuestions().start_again("42", without("node1", "node2"))
    assert slurm.updates() == ["scontrol update JobId=42 ExcNodeList=node2"]


def test_nothing_is_asked_if_no_node_is_to_be_avoided(slurm: FakeSlurm) -> None:
    assert JobQuestions().start_again("42", without()) == ""
    assert slurm.asked() == ["scontrol requeue 42"]


def test_the_job_starts_again_although_slurm_does_not_exclude_nodes(slurm: FakeSlurm) -> None:
    slurm.can_spare("node1")
    slurm.refuses_to_update()
    said: list[str] = []
    assert JobQuestions(said.append).start_again("42", without("node1")) == ""
    assert said[-1].startswith(
        "job 42 may get any nodes when it starts: scontrol could not exclude nodes from job 42: Access"
    )
    slurm.does_not_answer()
    assert JobQuestions(said.append).start_again("42", without("node1")) == ""
    assert said[-1].startswith("job 42 may get any nodes when it starts: squeue does not answer: ")


def test_a_job_that_slurm_never_requeues_is_told_from_other_refusals(slurm: FakeSlurm) -> None:
    said: list[str] = []
    questions = JobQuestions(said.append)
    for words, is_forbidden in (("Requested operation is presently disabled", True), ("Zero Bytes", False)):
        slurm.refuses_to_requeue(f"{words} for job 42")
        assert words in questions.start_again("42", without())
        assert questions.forbids_requeue() is is_forbidden
    (line,) = said
    assert line.endswith("presently disabled for job 42; another job is to take its place")


@pytest.mark.parametrize(("minute", "leaves"), [(21, True), (15, False)])
def test_the_next_start_leaves_a_reservation_that_ends_before(
    minute: int, leaves: bool, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm would hold it for ever when the reservation is over."""
    monkeypatch.setenv("SLURM_JOB_RESERVATION", "course")
    slurm.runs_in_reservation_since(minute)
    said: list[str] = []
    assert JobQuestions(said.append).start_again("42", without()) == ""
    assert JobQuestions(said.append).submit_after("42", without()) == ("43", "")
    assert slurm.updates() == [f"scontrol update JobId={job_id} ReservationName=" for job_id in (42, 43) if leaves]
    assert len(said) == len(slurm.updates())


def test_the_job_starts_again_although_slurm_does_not_let_it_leave_its_reservation(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_RESERVATION", "course")
    slurm.runs_in_reservation_since(21)
    slurm.refuses_to_update()
    said: list[str] = []
    assert JobQuestions(said.append).start_again("42", without()) == ""
    assert said == ["scontrol could not take job 42 out of its reservation: Access denied for job 42"]


def test_a_chained_job_is_submitted_without_a_reservation_that_is_over(slurm: FakeSlurm) -> None:
    """The script still asks for it, also where the job that ends had to do without it already."""
    slurm.has_no_reservation()
    said: list[str] = []
    assert JobQuestions(said.append).submit_after("42", without()) == ("43", "")
    submissions = [line for line in slurm.asked() if line.startswith("sbatch ")]
    assert submissions[-1] == "sbatch --parsable --dependency=afterany:42 --reservation= /tmp/job.sh"
    assert said == ["the next start, job 43, is without the reservation that the job asks for, which is over"]


@pytest.mark.long
def test_silences_before_it_leave_a_try_without_the_reservation_that_is_over(slurm: FakeSlurm) -> None:
    slurm.has_no_reservation()
    slurm.answers_no_submission(times=SUBMIT_TRIES - 1)
    assert JobQuestions(lambda _: None, submits_within_s=0.5).submit_after("42", without()) == ("43", "")


def test_a_chained_job_is_kept_from_what_the_user_and_the_run_exclude(slurm: FakeSlurm) -> None:
    slurm.excludes("gpu7")
    slurm.can_spare("gpu7,node1")
    assert JobQuestions().submit_after("42", without("node1", earlier=("node9",))) == ("43", "")
    assert slurm.asked()[0] == "sbatch --parsable --dependency=afterany:42 /tmp/job.sh"
    assert slurm.updates() == ["scontrol update JobId=43 ExcNodeList=gpu7,node1"]


def test_a_chained_job_that_is_to_avoid_nothing_stays_as_it_is(slurm: FakeSlurm) -> None:
    assert JobQuestions().submit_after("42", without(earlier=("node9",))) == ("43", "")
    assert slurm.updates() == []


@pytest.mark.long
def test_a_job_is_submitted_again_if_no_answer_came_and_it_may_have_been_accepted(slurm: FakeSlurm) -> None:
    slurm.answers_no_submission(times=1)
    said: list[str] = []
    assert JobQuestions(said.append, submits_within_s=1.0).submit_after("42", without()) == ("43", "")
    assert said == ["Slurm does not answer: sbatch did not answer within 1 s; it is asked once more for a job after 42"]
    assert len([line for line in slurm.asked() if line.startswith("sbatch ")]) == 2


@pytest.mark.long
def test_a_submission_that_is_never_answered_is_refused(slurm: FakeSlurm) -> None:
    slurm.answers_no_submission(times=9)
    refusal = "Slurm does not answer: sbatch did not answer within 0.5 s"
    assert JobQuestions(submits_within_s=0.5).submit_after("42", without()) == ("", refusal)
    assert len([line for line in slurm.asked() if line.startswith("sbatch ")]) == 3
