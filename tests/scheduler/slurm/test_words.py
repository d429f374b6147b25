"""The tips for refusals, on what sbatch of each Slurm said: `python -m tests.captured.record_refusals`."""

from __future__ import annotations

import json

import pytest

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.slurm import output
from hpc_elastic.scheduler.slurm.output import CommandOutput
from tests.captured.record_refusals import PATH

with open(PATH) as _file:
    REFUSALS: dict[str, dict[str, str]] = json.load(_file)
TIPS = {
    "account": "sacctmgr show assoc",
    "begin": "now+1hour",
    "clusters": "sacctmgr show clusters",
    "constraint": "%f",
    "deadline": "%l",
    "dependency-form": "afterok:JOBID",
    "dependency-unknown": "known to this Slurm",
    "licenses": "scontrol show licenses",
    "nodelist": "sinfo --Node",
    "partition-down": "sinfo --summarize",
    "qos": "name a QOS",
    "reservation": "scontrol show reservation",
    "submit-limit": "as many jobs in the queue",
    "wckey": "sacctmgr show wckey",
}


@pytest.mark.parametrize(
    ("version", "case"), [(version, case) for version, cases in REFUSALS.items() for case in cases]
)
def test_a_refusal_comes_with_what_to_do_about_it(version: str, case: str) -> None:
    refused = CommandOutput(returncode=1, stdout="", stderr=REFUSALS[version][case])
    with pytest.raises(SchedulerError) as caught:
        output.parse_submission(refused)
    assert TIPS[case] in (caught.value.tip or ""), caught.value.message


@pytest.mark.parametrize(
    ("words", "tip"),
    [  # slurm_errno.c; what brings them about is not in a sandbox
        ("Requested partition configuration not available now", "sinfo --summarize"),
        ("Required node not available (down, drained or reserved)", "--list-reasons"),
        ("Requested nodes not in this partition", "sinfo --Node"),
        ("Access denied to requested reservation", "scontrol show reservation"),
        ("Requested reservation not usable now", "scontrol show reservation"),
        ("Licenses currently unavailable", "scontrol show licenses"),
        ("Circular job dependency", "afterok:JOBID"),
        ("Invalid user id", "ask the admins"),
        ("AssocGrpSubmitJobsLimit", "as many jobs in the queue"),
        ("QOSMaxSubmitJobPerUserLimit", "as many jobs in the queue"),
        ("AssocMaxSubmitJobLimit", "each run of an array is one"),
        ("AssocMaxWallDurationPerJobLimit", "limit of your account"),
    ],
)
def test_a_tip_is_known_for_slurms_words(words: str, tip: str) -> None:
    refused = CommandOutput(returncode=1, stdout="", stderr=f"sbatch: error: Batch job submission failed: {words}\n")
    with pytest.raises(SchedulerError) as caught:
        output.parse_submission(refused)
    assert tip in (caught.value.tip or "")


def test_every_refusal_that_was_recorded_has_its_tip_checked() -> None:
    assert set(TIPS) == {case for cases in REFUSALS.values() for case in cases}


@pytest.mark.parametrize(
    ("words", "is_passing"),
    [
        ("QOSMaxSubmitJobPerUserLimit", True),
        ("AssocGrpSubmitJobsLimit", True),
        ("QOSMaxWallDurationPerJobLimit", False),
        ("Invalid qos specification", False),
        ("Required partition not available (inactive or drain)", True),
        ("Requested partition configuration not available now", True),
        ("Required node not available (down, drained or reserved)", True),
        ("Requested reservation not usable now", True),
        ("Licenses currently unavailable", True),
        ("Resource temporarily unavailable", True),
        ("Requested time limit is invalid (missing or exceeds some limit)", False),
        ("Invalid account or account/partition combination specified", False),
        ("Requested node configuration is not available", False),
        ("Requested reservation is invalid", False),
    ],
)
def test_a_refusal_for_now_is_told_from_one_that_stays(words: str, is_passing: bool) -> None:
    refused = CommandOutput(returncode=1, stdout="", stderr=f"sbatch: error: {words}\n")
    with pytest.raises(SchedulerError) as caught:
        output.parse_submission(refused)
    assert caught.value.is_passing is is_passing
