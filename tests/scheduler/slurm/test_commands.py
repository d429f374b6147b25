from __future__ import annotations

import pytest

from hpc_elastic.scheduler.slurm import commands


@pytest.mark.parametrize(
    ("submission", "shell", "asked"),
    [
        ({"host": "login1", "selected_by": {"SLURM_CLUSTERS": "big"}}, {}, {"SLURM_CLUSTERS": "big"}),
        (
            {"host": "login9", "selected_by": {"SLURM_CLUSTERS": "big"}},
            {"SBATCH_CLUSTERS": "x"},
            {"SLURM_CLUSTERS": "big"},
        ),
        ({"host": "login1", "selected_by": {}}, {"SLURM_CLUSTERS": "big", "SBATCH_CLUSTERS": "x"}, {}),
        (
            {"host": "login9", "selected_by": {}},
            {"SLURM_CLUSTERS": "big"},
            {"SLURM_CLUSTERS": "big"},
        ),  # perhaps its own
        ({"host": "login1"}, {"SLURM_CLUSTERS": "big"}, {"SLURM_CLUSTERS": "big"}),  # an older version's record
        ({}, {"SLURM_CLUSTERS": "big"}, {"SLURM_CLUSTERS": "big"}),
    ],
)
def test_a_job_is_asked_for_where_it_was_submitted_to(
    submission: dict[str, object], shell: dict[str, str], asked: dict[str, str]
) -> None:
    found = commands.as_submitted({"SLURM_CONF": "/c", **shell}, submission, host="login1")
    assert found == {"SLURM_CONF": "/c", **asked}


def test_sbatch_gets_the_script_alone() -> None:
    assert commands.sbatch_command("/a run/job.sh") == ["sbatch", "--parsable", "/a run/job.sh"]


def test_squeue_asks_for_all_jobs_at_once_and_cuts_no_field() -> None:
    assert commands.squeue_command(["1", "2_3"]) == [
        *("squeue", "--noheader", "--all", "--array", "--states=all", "--jobs=1,2_3"),
        "--Format=JobID:|,JobArrayID:|,State:|,RestartCnt:|,exit_code:|,NodeList:|,Reason:|",
    ]


def test_several_tasks_of_an_array_are_asked_for_as_the_array() -> None:
    assert commands.batched_ids(["1", "2_0", "2_1", "3_7", "2_2"]) == ["1", "2", "3_7"]


def test_sacct_asks_for_allocations_only() -> None:
    assert commands.sacct_command(["1", "2"]) == [
        *("sacct", "--noheader", "--allocations", "--parsable2", "--delimiter=|", "--jobs=1,2"),
        "--format=JobIDRaw,JobID,State,ExitCode,NodeList,Reason",
    ]


def test_ping_asks_for_the_controller() -> None:
    assert commands.ping_command() == ["scontrol", "ping"]


def test_scancel_requeue_and_sinfo() -> None:
    assert commands.requeue_command("7_3") == ["scontrol", "requeue", "7_3"]
    assert commands.scancel_command("7") == ["scancel", "7"]
    assert commands.scancel_pending_command("7") == ["scancel", "--state=PENDING", "7"]
    assert commands.sinfo_command() == ["sinfo", "--noheader", "--format=%P"]


def test_submission_loses_variables_that_outrank_the_script() -> None:
    environ = {"SBATCH_ACCOUNT": "mine", "SBATCH_QOS": "high", "SLURM_JOB_ID": "1", "SLURM_CONF": "/etc/s", "A": "b"}
    assert commands.submission_environment(environ, ["account"]) == {
        "SBATCH_QOS": "high",
        "SLURM_CONF": "/etc/s",
        "A": "b",
    }


def test_questions_lose_variables_that_change_their_answers() -> None:
    environ = {"SQUEUE_STATES": "R", "SCANCEL_STATE": "PENDING", "SLURM_CONF": "/etc/s", "PATH": "/bin"}
    assert commands.query_environment(environ) == {"SLURM_CONF": "/etc/s", "PATH": "/bin"}


def test_every_command_asks_the_cluster_that_sbatch_takes() -> None:
    shell = {"SBATCH_CLUSTERS": "big", "SLURM_CLUSTERS": "small"}
    assert commands.submission_environment(shell, ()) == {"SLURM_CLUSTERS": "big"}
    assert commands.query_environment(shell) == {"SLURM_CLUSTERS": "big"}
    assert commands.query_environment({"SLURM_CLUSTERS": "small"}) == {"SLURM_CLUSTERS": "small"}
