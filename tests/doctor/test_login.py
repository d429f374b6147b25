"""What is tried on the login node: Slurm's answers from a runner of the test's own, and real folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hpc_elastic.doctor.login import examine_run_root, examine_slurm, judge_run_root
from hpc_elastic.doctor.probes.answers import FolderSeen
from hpc_elastic.doctor.results import Severity
from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.slurm.output import CommandOutput
from hpc_elastic.scheduler.slurm.runner import MissingProgramError, SilenceError
from tests.doctor.told import SETTINGS, settings
from tests.plans import make_plan


class Answering:
    """A Slurm that answers as the captured one did, and notes what it was asked."""

    def __init__(self, case: str = SETTINGS[0]) -> None:
        self._answers = settings(case)
        self.asked: list[Sequence[str]] = []

    def __call__(
        self, command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float, cwd: str | None = None
    ) -> CommandOutput:
        self.asked.append(command)
        return self._answers["partitions" if "partition" in command else "config"]


def test_slurm_is_asked_each_question_once() -> None:
    slurm = Answering()
    seen = examine_slurm(make_plan(), run=slurm)
    assert len(slurm.asked) == 2
    assert seen.config["ClusterName"].startswith("sandbox")
    assert [each["PartitionName"] for each in seen.partitions] == ["batch", "urgent"]
    by_check = {each.check: each for each in seen.results}
    assert by_check["kill wait"].found == "KillWait 5 s, GraceTime of batch 5 s"  # below the plan's 60 s
    assert (by_check["kill wait"].verdict, by_check["kill wait"].key) == (Severity.WARN, "defaults.signals.grace")
    assert not seen.is_silent


@pytest.mark.parametrize(
    ("error", "is_silent"),
    [
        (SilenceError("Slurm does not answer: scontrol did not answer within 10 s"), True),
        (MissingProgramError("cannot run scontrol: No such file or directory"), True),
        (SchedulerError("scontrol does not answer: not allowed"), False),
    ],
)
def test_a_slurm_that_does_not_answer_is_one_line(error: SchedulerError, is_silent: bool) -> None:
    def fail(
        command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float, cwd: str | None = None
    ) -> CommandOutput:
        raise error

    seen = examine_slurm(make_plan(), run=fail)
    (result,) = seen.results
    assert (result.verdict, result.found, seen.is_silent) == (Severity.FAIL, error.message, is_silent)


def test_a_run_root_is_made_and_tried(tmp_path: Path) -> None:
    seen = examine_run_root(str(tmp_path / "a" / "b"))
    assert seen.problems == {}
    assert (tmp_path / "a" / "b").is_dir()


def test_a_run_root_below_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (result,) = judge_run_root(examine_run_root(str(tmp_path / "a" / "b")), is_shared=True)
    assert (result.verdict, result.key) == (Severity.FAIL, "run_root")
    assert "make: Not a directory" in result.found


@pytest.mark.parametrize(
    ("kind", "is_shared", "verdict"),
    [
        ("tmpfs", True, Severity.WARN),
        ("tmpfs", False, Severity.OK),
        ("lustre", True, Severity.OK),
    ],
)
def test_a_run_root_in_memory_cannot_be_shared(kind: str, is_shared: bool, verdict: Severity) -> None:
    seen = FolderSeen(path="/runs", kind=kind, took_ms={"write": 3.0})
    (result,) = judge_run_root(seen, is_shared=is_shared)
    assert result.verdict is verdict
