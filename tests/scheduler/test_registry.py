"""A scheduler is a folder and a row: here each folder has what the others take for granted."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpc_elastic.scheduler
from hpc_elastic.errors import AllocationError, RunDirectoryError, SchedulerError
from hpc_elastic.scheduler.local import from_node as local_from_node
from hpc_elastic.scheduler.local import scheduler as local_scheduler
from hpc_elastic.scheduler.local import step as local_step
from hpc_elastic.scheduler.protocol import FromNodeModule, SchedulerModule, StepModule
from hpc_elastic.scheduler.registry import SCHEDULERS, derive_start, from_node, make_scheduler
from hpc_elastic.scheduler.slurm import from_node as slurm_from_node
from hpc_elastic.scheduler.slurm import scheduler as slurm_scheduler
from hpc_elastic.scheduler.slurm import step as slurm_step

# Their types are what is checked here: mypy holds each module against its protocol.
SCHEDULER_MODULES: dict[str, SchedulerModule] = {"local": local_scheduler, "slurm": slurm_scheduler}
STEP_MODULES: dict[str, StepModule] = {"local": local_step, "slurm": slurm_step}
FROM_NODE_MODULES: dict[str, FromNodeModule] = {"local": local_from_node, "slurm": slurm_from_node}


def test_each_folder_has_a_row_and_each_row_a_folder() -> None:
    folders = {path.parent.name for path in Path(hpc_elastic.scheduler.__path__[0]).glob("*/scheduler.py")}
    assert folders == set(SCHEDULERS) == set(SCHEDULER_MODULES) == set(STEP_MODULES) == set(FROM_NODE_MODULES)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_plan_finds_its_scheduler_by_name(name: str, tmp_path: Path) -> None:
    scheduler = make_scheduler(name, run_dir=str(tmp_path))
    assert (scheduler.name, scheduler.answers_at_once) == (name, name == "local")


def test_a_scheduler_that_is_not_there_is_named() -> None:
    with pytest.raises(RunDirectoryError, match="names the scheduler 'pbs', expected slurm or local"):
        make_scheduler("pbs")


@pytest.mark.parametrize(
    ("job_id", "module"),
    [
        ("local-7-123", local_from_node),
        ("local-7-123_4", local_from_node),
        ("7", slurm_from_node),
        ("7_4", slurm_from_node),
    ],
)
def test_a_job_finds_its_scheduler_by_the_shape_of_its_id(job_id: str, module: FromNodeModule) -> None:
    assert from_node(job_id) is module


def test_a_job_of_this_machine_inside_of_a_slurm_job_is_of_this_machine() -> None:
    assert derive_start({"SLURM_JOB_ID": "7", "HPC_ELASTIC_LOCAL_JOB_ID": "local-7-123"}) == ("local-7-123", 0)


def test_without_any_scheduler_the_error_says_what_is_missing() -> None:
    with pytest.raises(AllocationError, match="no SLURM_JOB_ID in the environment"):
        derive_start({"PATH": "/bin"})


def test_this_machine_starts_no_job_again() -> None:
    with pytest.raises(SchedulerError, match="local-7-123 is of this machine"):
        from_node("local-7-123").requeue_job("local-7-123", timeout_s=1)
