"""The program that stages a copy and becomes the agent."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from hpc_elastic.agent.node.staged_copy import StageError, fingerprint
from hpc_elastic.agent.stage import stage_here
from hpc_elastic.plan.launch_plan import StagePlan, dump_plan
from hpc_elastic.rundir.layout import RunLayout
from tests.plans import make_run_plan
from tests.slurm_sandbox.sandbox import wait_until

LAUNCH = str(Path(__file__).parents[2] / "hpc_elastic" / "launch.py")
TELLS = "import json, os, sys; print(json.dumps([sys.executable, sys.argv[1:], dict(os.environ)]))"


def run_stage(tmp_path: Path, stage: StagePlan, *arguments: str) -> subprocess.CompletedProcess[str]:
    run_dir = tmp_path / "run"
    run_dir.mkdir(exist_ok=True)
    Path(RunLayout(run_dir).plan).write_text(dump_plan(make_run_plan(run_dir, stage=stage)))
    command = [sys.executable, LAUNCH, "hpc_elastic.agent.stage", str(run_dir), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "DISK": str(tmp_path)}
    )


def is_free(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_source(tmp_path: Path) -> tuple[Path, StagePlan]:
    source = tmp_path / "environment"
    (source / "bin").mkdir(parents=True)
    (source / "bin" / "python").symlink_to(sys.executable)
    return source, StagePlan(source=str(source), target="${DISK}/disk", timeout_s=20.0)


@pytest.mark.long
def test_the_program_becomes_the_agent_by_the_python_of_the_copy(tmp_path: Path) -> None:
    _, stage = make_source(tmp_path)
    key = run_stage(tmp_path, stage).stdout.strip()
    done = run_stage(tmp_path, stage, key, "${HPC_ELASTIC_STAGE}/bin/python", "-c", TELLS, "a b")
    executable, argv, environ = json.loads(done.stdout)
    (copy,) = [path for path in (tmp_path / "disk").iterdir() if path.is_dir()]
    assert copy.name.endswith(key)
    assert (executable, argv, environ["HPC_ELASTIC_STAGE"]) == (f"{copy}/bin/python", ["a b"], str(copy))
    assert environ["HPC_ELASTIC_STAGE_DONE"].startswith(f"copied {tmp_path}/environment at {copy} in ")
    again = run_stage(tmp_path, stage, "", "${HPC_ELASTIC_STAGE}/bin/python", "-c", TELLS)  # the script had no key
    assert json.loads(again.stdout)[2]["HPC_ELASTIC_STAGE_DONE"].startswith("found ")


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "said"), [("/no/such", "cannot read /no/such: No such file or directory"), ("${NONE}/x", "is not set")]
)
def test_a_copy_that_cannot_be_made_starts_the_agent_by_our_python_with_the_reason(
    source: str, said: str, tmp_path: Path
) -> None:
    stage = StagePlan(source=source, target=str(tmp_path), timeout_s=20.0)
    asked = run_stage(tmp_path, stage)
    assert (asked.returncode, asked.stdout) == (0, "")
    assert said in asked.stderr
    done = run_stage(tmp_path, stage, "", "${HPC_ELASTIC_STAGE}/bin/python", "-c", TELLS)
    executable, _, environ = json.loads(done.stdout)
    assert os.path.samefile(executable, sys.executable)
    assert said in environ["HPC_ELASTIC_STAGE_PROBLEM"]


def test_a_source_that_is_a_pipe_is_refused_before_anybody_waits_for_its_writer(tmp_path: Path) -> None:
    source = tmp_path / "image.sif"
    os.mkfifo(source)
    stage = StagePlan(source=str(source), target=str(tmp_path / "disk"), timeout_s=60.0)
    with pytest.raises(StageError, match=f"{source} is neither a file nor a folder"):
        stage_here(stage, "")


@pytest.mark.long
def test_a_python_that_is_not_in_the_copy_is_a_reason_too(tmp_path: Path) -> None:
    _, stage = make_source(tmp_path)
    done = run_stage(tmp_path, stage, "", "${HPC_ELASTIC_STAGE}/bin/pypy", "-c", TELLS)
    assert "there is no program" in json.loads(done.stdout)[2]["HPC_ELASTIC_STAGE_PROBLEM"]


def test_a_source_that_hangs_is_left_behind_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "image.tar"
    source.touch()
    hangs = tmp_path / "programs" / "tar"
    hangs.parent.mkdir()
    hangs.write_text("#!/bin/sh\nexec sleep 60\n")
    hangs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{hangs.parent}:{os.environ['PATH']}")
    with pytest.raises(StageError, match=f"cannot copy {source}: not done within 0"):
        stage_here(
            StagePlan(source=str(source), target=str(tmp_path / "disk"), timeout_s=0.3), fingerprint(str(source))
        )
    (lock,) = (tmp_path / "disk").glob(".*.lock")
    with open(lock, "rb") as other:
        wait_until(lambda: is_free(other), "another job can have the lock")
