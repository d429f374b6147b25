"""What `check` says of Slurm's own times between TERM and KILL."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.api.stop_limits import check_stop_limits, describe_over_time, short_limits
from hpc_elastic.errors import SchedulerError
from hpc_elastic.plan.launch_plan import SignalsPlan
from hpc_elastic.scheduler.slurm.limits import StopLimits, find_stop_limits
from hpc_elastic.scheduler.slurm.output import CommandOutput
from tests.plans import make_plan

CONFIG = """\
Configuration data as of 2026-11-23T08:00:00
KillWait                = 30 sec
OverTimeLimit           = 0 min
PreemptMode             = REQUEUE
PreemptType             = preempt/partition_prio
"""
PARTITIONS = (
    "PartitionName=batch AllowGroups=ALL Default=YES GraceTime=5 OverTimeLimit=NONE PreemptMode=REQUEUE State=UP\n"
    "PartitionName=urgent AllowGroups=ALL Default=NO GraceTime=0 OverTimeLimit=2 PreemptMode=OFF State=UP\n"
)


def answering(config: str = CONFIG, returncode: int = 0):  # type: ignore[no-untyped-def]
    def run(command, *, environ, timeout_s, cwd=None):  # type: ignore[no-untyped-def]
        text = config if "config" in command else PARTITIONS
        return CommandOutput(returncode=returncode, stdout=text, stderr="" if not returncode else "no controller")

    return run


def plan_with(grace_s: float):  # type: ignore[no-untyped-def]
    return make_plan(signals=SignalsPlan(notice="USR2", lead_s=120, grace_s=grace_s, restart_grace_s=5))


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (None, StopLimits(kill_wait_s=30, preemption_s=5, partition="batch", over_time_s=0)),
        ("urgent", StopLimits(kill_wait_s=30, preemption_s=None, partition="urgent", over_time_s=120)),
        ("urgent,batch", StopLimits(kill_wait_s=30, preemption_s=5, partition="batch", over_time_s=0)),
        ("nowhere", StopLimits(kill_wait_s=30, preemption_s=None, partition="nowhere", over_time_s=0)),
    ],
)
def test_a_partitions_times_are_found(partition: str | None, expected: StopLimits) -> None:
    assert find_stop_limits(partition, run=answering()) == expected


QOS_CONFIG = CONFIG.replace("preempt/partition_prio", "preempt/qos")
QOSS = "normal||cluster|00:00:00\nlow||cluster|00:10:00\nhigh|low,scavenger,lost|cluster|00:00:00\n"
QOSS += "scavenger||cancel|00:00:00\nlost||off|00:00:30\n"


@pytest.mark.parametrize(
    ("qos", "expected"),
    [
        ("low", 600),
        ("scavenger", 0),
        ("lost", None),  # its jobs are never preempted
        ("normal", None),
        ("elsewhere", None),
        (None, None),  # accounting knows its default, and the GraceTime of the partition is not it
    ],
)
def test_a_qos_has_the_grace_where_qoss_preempt_each_other(qos: str | None, expected: int | None) -> None:
    def run(command, *, environ, timeout_s, cwd=None):  # type: ignore[no-untyped-def]
        text = QOSS if command[0] == "sacctmgr" else QOS_CONFIG if "config" in command else PARTITIONS
        return CommandOutput(returncode=0, stdout=text, stderr="")

    limits = find_stop_limits("batch", qos, run=run)
    assert limits.preemption_s == expected
    told = [line for line in short_limits(plan_with(60), limits) if "preempted" in line]
    assert len(told) == (expected == 0)
    assert all("preempted in QOS scavenger is killed after 30 s (its GraceTime of 0 s" in line for line in told)


def test_accounting_that_does_not_answer_leaves_the_grace_of_a_qos_unknown() -> None:
    def run(command, *, environ, timeout_s, cwd=None):  # type: ignore[no-untyped-def]
        if command[0] == "sacctmgr":
            raise SchedulerError("Slurm does not answer: sacctmgr did not answer within 2 s")
        return answering(QOS_CONFIG)(command, environ=environ, timeout_s=timeout_s)

    assert find_stop_limits("batch", "low", run=run).preemption_s is None


def test_a_controller_that_does_not_answer_is_told() -> None:
    with pytest.raises(SchedulerError, match="scontrol does not answer"):
        find_stop_limits(None, run=answering(returncode=1))


def test_times_that_are_too_short_are_named_with_what_cuts_the_grace_short() -> None:
    lines = short_limits(plan_with(60), StopLimits(kill_wait_s=30, preemption_s=5, partition="batch"))
    assert len(lines) == 2
    assert "30 s after the TERM of scancel" in lines[0]
    assert "preempted in partition batch is killed after 35 s" in lines[1]


def test_nothing_is_said_of_times_that_are_long_enough_or_unknown() -> None:
    assert short_limits(plan_with(20), StopLimits(kill_wait_s=30, preemption_s=0, partition="batch")) == []
    assert short_limits(plan_with(60), StopLimits(kill_wait_s=None, preemption_s=None, partition="")) == []


def test_the_partition_of_the_submitting_shell_is_asked_about_unless_the_job_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(CONFIG)
    (tmp_path / "partitions").write_text(PARTITIONS)
    program = tmp_path / "scontrol"
    program.write_text(
        f'#!/bin/bash\n[[ "$*" == *config* ]] && exec cat {tmp_path}/config\ncat {tmp_path}/partitions\n'
    )
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SBATCH_PARTITION", "urgent")
    said: list[str] = []
    plan = replace(plan_with(20), scheduler="slurm")
    assert check_stop_limits(plan, warn=said.append) == find_stop_limits("urgent", run=answering())
    named = replace(plan, sbatch={**plan.sbatch, "partition": "batch"})
    assert check_stop_limits(named, warn=said.append) == find_stop_limits("batch", run=answering())


@pytest.mark.parametrize(
    ("of_partition", "of_cluster", "told"),
    [
        ("NONE", "0 min", ""),
        ("NONE", "5 min", "5 min beyond its limit"),
        ("2", "5 min", "2 min beyond its limit"),
        ("UNLIMITED", "0 min", "any time beyond its limit"),
    ],
)
def test_the_time_that_slurm_lets_a_job_run_beyond_its_limit_is_told(
    of_partition: str, of_cluster: str, told: str
) -> None:
    def run(command, *, environ, timeout_s, cwd=None):  # type: ignore[no-untyped-def]
        shown = PARTITIONS.replace("OverTimeLimit=NONE", f"OverTimeLimit={of_partition}")
        text = CONFIG.replace("0 min", of_cluster) if "config" in command else shown
        return CommandOutput(returncode=0, stdout=text, stderr="")

    text = describe_over_time(find_stop_limits(None, run=run))
    assert told in text
    assert bool(text) == bool(told)
