"""Where the modules of a submitted function are imported from if the run keeps a snapshot of the code."""

from __future__ import annotations

from pathlib import Path

from hpc_elastic.api.prepare import JobSource, PreparedRun
from hpc_elastic.api.submission import make_run_directory
from hpc_elastic.job.parse import parse_job
from hpc_elastic.plan.launch_plan import SnapshotPlan
from hpc_elastic.rundir.function_file import FunctionHeader, dump_function, read_function
from hpc_elastic.site.search import find_site
from tests.api.test_code_snapshot import write_checkout
from tests.plans import make_plan

JOB = "entrypoint: {script: train.py}\n"


def test_a_function_imports_from_the_snapshot_what_it_has_and_all_else_from_where_it_was(tmp_path: Path) -> None:
    work, run_dir = write_checkout(tmp_path / "checkout"), str(tmp_path / "run")
    (tmp_path / "alias").symlink_to("checkout")
    snapshot = f"{run_dir}/snapshot"
    path = ("", f"{work}/pack age", f"{tmp_path}/alias/{work.name}", f"{work}2", "/usr/lib/python3")
    header = FunctionHeader(function="a:b", python="3.11.2", is_by_value=False, path=path)
    source = JobSource(text=JOB, file="job.yaml", directory=str(work), function=dump_function(header, b"a\nb"))
    prepared = PreparedRun(
        source=source,
        job=parse_job(JOB, file="job.yaml"),
        site=find_site("generic-slurm", job_dir=str(work), environ={}),
        plan=make_plan(run_dir=run_dir, snapshot=SnapshotPlan(source=str(work), directory=snapshot)),
        script="true\n",
    )
    found, pickled = read_function(make_run_directory(prepared).layout.function)
    assert found.path == ("", f"{snapshot}/pack age", path[1], snapshot, *path[2:])
    assert pickled == b"a\nb"
