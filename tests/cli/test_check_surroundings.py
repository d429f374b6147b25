"""What `check` says of the code, the environment and the image of a run."""

from __future__ import annotations

from hpc_elastic.cli.check import describe_plan
from hpc_elastic.plan.container import ContainerPlan
from hpc_elastic.plan.launch_plan import SnapshotPlan, StagePlan
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
