"""What `check` says of a run: its code, environment and image, and when its workers are stopped."""

from __future__ import annotations

from hpc_elastic.cli.check import describe_plan
from hpc_elastic.plan.container import ContainerPlan
from hpc_elastic.plan.launch_plan import SignalsPlan, SnapshotPlan, StagePlan
from tests.plans import make_plan

LABELS = ("code", "copied first", "container")


def test_code_environment_and_image_are_told_where_a_job_asks_for_them() -> None:
    plan = make_plan(
        snapshot=SnapshotPlan(source="/home/ada/digits", directory="/runs/a/snapshot"),
        stage=StagePlan(source="/home/ada/a.sif", target="/local", timeout_s=60.0),
        container=ContainerPlan(runtime="apptainer", image="${HPC_ELASTIC_STAGE}"),
    )
    assert [(label, text) for label, text in describe_plan(plan) if label in LABELS] == [
        ("code", "a copy of what git tracks in /home/ada/digits"),
        ("copied first", "/home/ada/a.sif to /local"),
        ("container", "apptainer: ${HPC_ELASTIC_STAGE}"),
    ]


def test_nothing_is_told_where_all_is_the_nodes_own() -> None:
    assert not [label for label, _ in describe_plan(make_plan()) if label in LABELS]


def test_how_long_before_the_time_limit_workers_hear_of_it_is_told_where_there_is_one() -> None:
    signals = SignalsPlan(notice="USR1", lead_s=90.0, grace_s=30.0, restart_grace_s=5.0)
    told = dict(describe_plan(make_plan(time_s=600.0, signals=signals)))
    assert told["stop"] == "notice 90 s before the end, then TERM, and KILL after 30 s"
    assert dict(describe_plan(make_plan(time_s=None, signals=signals)))["stop"] == "TERM, then KILL after 30 s"
