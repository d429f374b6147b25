"""The command line against the real Slurm: wait, cancel, setup failures, and a run inside an allocation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slurm_sandbox.cluster import Cluster
from tests.without_torch import hide_torch

SITE = ["--site", "generic-slurm"]
HPC_ELASTIC = [sys.executable, "-m", "hpc_elastic"]
JOB = """\
nodes: 4
workers_per_node: 2
time: 5m
resources: {cpus_per_worker: 1}
entrypoint: {script: train.py}
"""

pytestmark = pytest.mark.slurm


@pytest.fixture
def folder(workplace: Path, slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job that is not about torch."""
    monkeypatch.setenv("PYTHONPATH", hide_torch(os.environ, tmp_path / "without-torch")["PYTHONPATH"])
    (workplace / "job.yaml").write_text(JOB)
    (workplace / "train.py").write_text("import os\nprint('rank', os.environ['RANK'], os.environ['WORLD_SIZE'])\n")
    return workplace


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=180)


def only_run(folder: Path) -> Path:
    (found,) = (folder / "hpc-elastic-runs").iterdir()
    return found


def result(folder: Path) -> Any:
    return json.loads((only_run(folder) / "result.json").read_text())


@pytest.mark.mirrored
def test_follow_shows_a_run_to_its_end(folder: Path) -> None:
    done = run(*HPC_ELASTIC, "submit", "job.yaml", "--follow", *SITE)
    assert (done.returncode, done.stdout) == (0, "rank 0 8\n"), done.stderr
    assert "attempt 1: 8 workers on 4 nodes" in done.stderr
    assert "SUCCEEDED" in done.stderr


@pytest.mark.variant(of="test_cancel_of_a_pending_run_takes_it_out_of_the_queue")
@pytest.mark.mirrored
def test_cancel_of_a_pending_job_gives_it_a_result(folder: Path) -> None:
    submitted = run(*HPC_ELASTIC, "submit", "job.yaml", "--json", "--set", "sbatch.hold=true", *SITE)
    assert submitted.returncode == 0, submitted.stderr
    cancelled = run(*HPC_ELASTIC, "cancel")
    assert cancelled.returncode == 0, cancelled.stderr
    assert (result(folder)["state"], result(folder)["written_by"]) == ("CANCELLED", "login")


@pytest.mark.every_slurm
def test_scancel_of_a_pending_job_is_found_by_status(folder: Path) -> None:
    submitted = run(*HPC_ELASTIC, "submit", "job.yaml", "--json", "--set", "sbatch.hold=true", *SITE)
    run("scancel", json.loads(submitted.stdout)["job_id"])
    status = run(*HPC_ELASTIC, "status", "--json")
    assert json.loads(status.stdout)["state"] == "CANCELLED", status.stderr
    assert result(folder)["reason"] == "terminated"


@pytest.mark.variant(of="test_cancel_of_a_running_run_gives_the_workers_their_grace")
@pytest.mark.mirrored
def test_cancel_of_a_running_job_is_graceful(folder: Path) -> None:
    (folder / "train.py").write_text("import time\nprint('training', flush=True)\ntime.sleep(300)\n")
    process = subprocess.Popen(
        [*HPC_ELASTIC, "submit", "job.yaml", "--follow", *SITE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"
    cancelled = run(*HPC_ELASTIC, "cancel")
    assert cancelled.returncode == 0, cancelled.stderr
    process.communicate(timeout=60)
    assert process.returncode == 10
    assert (result(folder)["state"], result(folder)["reason"]) == ("CANCELLED", "stop_requested")
    assert result(folder)["written_by"] != "login"


@pytest.mark.variant(of="test_a_failing_setup_line_is_named_and_status_makes_the_result")
def test_failing_setup_line_is_the_cause(folder: Path) -> None:
    done = run(*HPC_ELASTIC, "submit", "job.yaml", "--wait", "--set", "setup=['false']", *SITE)
    assert done.returncode == 3, done.stderr
    assert (result(folder)["reason"], result(folder)["written_by"]) == ("setup_failed", "login")
    assert "false" in result(folder)["cause"]


@pytest.mark.variant(of="test_run_of_a_job_file_inside_salloc")
def test_run_inside_an_allocation_takes_all_its_nodes(folder: Path) -> None:
    done = run("salloc", "--nodes=3", "--time=5", *HPC_ELASTIC, "run", "--workers-per-node", "2", "train.py")
    assert (done.returncode, done.stdout) == (0, "rank 0 6\n"), done.stderr
    assert result(folder)["nodes"] == ["node1", "node2", "node3"]


@pytest.mark.every_slurm
def test_refusal_of_slurm_leaves_nothing(folder: Path) -> None:
    done = run(*HPC_ELASTIC, "submit", "job.yaml", "--set", "sbatch.partition=nowhere", *SITE)
    assert done.returncode == 4
    assert "partition" in done.stderr
    assert not (folder / "hpc-elastic-runs").exists()


@pytest.mark.mirrored
def test_run_inside_an_allocation_that_is_too_small_says_so(folder: Path) -> None:
    inside = ["run", "--workers-per-node", "4", "--set", "resources.cpus_per_worker=16", "train.py"]
    done = run("salloc", "--nodes=1", "--time=5", *HPC_ELASTIC, *inside)
    assert done.returncode == 3
    assert "More processors requested than permitted" in done.stderr


@pytest.mark.mirrored
def test_interrupt_of_a_run_inside_an_allocation_stops_it_with_grace(folder: Path) -> None:
    (folder / "train.py").write_text("import time\nprint('training', flush=True)\ntime.sleep(300)\n")
    line = "set -m; " + " ".join([*HPC_ELASTIC, "run", "train.py", "&", "echo $! >pid; wait $!; echo ended $?"])
    process = subprocess.Popen(
        ["salloc", "--nodes=2", "--time=5", "bash", "-c", line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"
    os.kill(int((folder / "pid").read_text()), signal.SIGINT)
    output, error = process.communicate(timeout=120)
    assert output == "ended 10\n", error
    assert (result(folder)["state"], result(folder)["reason"]) == ("CANCELLED", "stop_requested")
