"""What a submission finds missing of snapshots and mounts, before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.api.preflight import check_files
from hpc_elastic.api.prepare import JobSource, PreparedRun
from hpc_elastic.errors import JobError
from hpc_elastic.job.parse import parse_job
from hpc_elastic.plan.container import ContainerPlan
from hpc_elastic.plan.launch_plan import LaunchPlan, SnapshotPlan
from hpc_elastic.plan.roles import EntrypointPlan
from hpc_elastic.resolve.container import own_mounts
from hpc_elastic.site.search import find_site
from tests.api.test_code_snapshot import write_checkout
from tests.plans import make_plan


def prepare(folder: Path, plan: LaunchPlan) -> PreparedRun:
    text = "nodes: 1\nsnapshot: true\nentrypoint: {script: train.py}\n"
    return PreparedRun(
        source=JobSource(text=text, directory=str(folder), file="job.yaml"),
        job=parse_job(text, file="job.yaml"),
        site=find_site("generic-slurm", job_dir=str(folder), environ={}),
        plan=plan,
        script="true\n",
    )


def test_the_script_of_each_run_of_an_array_has_to_be_in_the_snapshot(tmp_path: Path) -> None:
    work = write_checkout(tmp_path / "checkout")
    snapshot = SnapshotPlan(source=str(work), directory=str(tmp_path / "array" / "snapshot"))
    runs = [
        prepare(work, make_plan(snapshot=snapshot, entrypoint=EntrypointPlan(kind="script", target=script, args=())))
        for script in ("new.py", "train.py")
    ]
    with pytest.raises(JobError, match=r"git does not track the script new\.py"):
        check_files(runs, warn=lambda _: None)


def test_the_run_directory_that_the_submission_makes_is_not_missed_among_mounts(tmp_path: Path) -> None:
    run_dir, gone, lines = str(tmp_path / "runs" / "a$b"), str(tmp_path / "none" / "data"), list[str]()
    mounts = own_mounts(run_dir=run_dir, package_dir="/", workdir=gone)
    container = ContainerPlan(runtime="apptainer", image="docker://x", mounts=tuple(mounts))
    check_files([prepare(tmp_path, make_plan(run_dir=run_dir, container=container))], warn=lines.append)
    (told,) = [line for line in lines if "to be mounted" in line]
    assert told.startswith(f"job.yaml:1: container.mounts: there is no {gone} to be mounted")
