"""Every benchmark program runs, small, and writes what it found: a benchmark that nobody runs rots."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import rendezvous_scale
from tests.slurm_sandbox.cluster import Cluster
from tests.tiers import variants

REPOSITORY = Path(__file__).parents[2]
QUICK = "heartbeat"  # the benchmark that `make test` runs
# By name: the smallest run that goes through all of a program that is not somebody else's.
SMALL = {
    "command_line": ("-n", "1"),
    "agent_cost": ("--seconds", "0.5"),
    "gpu_state": ("--device=cpu", "--mebibytes=4", "--width=64", "--rows=8", "-n=2", "--turns=1", "--crashes=1"),
    "heartbeat": ("-n", "3"),
    "log_flood": ("--seconds", "0.3"),
    "logs_scale": ("--ranks", "16", "-n", "1"),
    "saved_state": ("-n", "3", "--crashes", "1", "--turns", "1", "--mebibytes", "4"),
    "useful_time": ("--mean", "1", "--kills", "2", "--mebibytes", "4", "--only", "ours"),
}
SMALL_RENDEZVOUS = ("--nodes", "4", "--idle", "4", "--peer", "--seconds", "0.2", "-n", "2")
SMALL_ON_SLURM = {
    "node_loss": ("-n", "1", "--peer", "0", "--only", "agent"),
    "recovery": ("-n", "1", "--peer-n", "0", "--repeats", "1", "--only", "recovery", "--launchers", "ours"),
    "slurm_latency": ("-n", "1", "--without-torchrun"),
    "useful_time_cuts": ("--mean", "2", "--cuts", "1", "--mebibytes", "4"),
    "slurm_versions": ("-n", "1", "--slurm", "22.05", "--only", "submit_wait", "scancel"),
}
SMALL_HEAD_LOSS = ("--nodes", "6", "--lease", "3", "-n", "1")
# The pictures need matplotlib; test_pages holds what these write into pages.
IN_PAGES = {"pages", "plots"}
PATIENCE_S = 280


def run(name: str, arguments: tuple[str, ...], folder: Path) -> Any:
    """What a program reports."""
    path = folder / f"{name}.json"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments, "--json", str(path)],
        cwd=REPOSITORY,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(path.read_text())


def has_figures(report: Any) -> bool:
    """Whether there is a number that was measured somewhere in a report."""
    if isinstance(report, dict):
        return any(has_figures(value) for value in report.values())
    if isinstance(report, list):
        return any(map(has_figures, report))
    return isinstance(report, float) and report > 0


@pytest.mark.local
@pytest.mark.long
@pytest.mark.parametrize(
    "name", [QUICK, *variants(*(name for name in SMALL if name != QUICK), of="test_a_benchmark_runs_small")]
)
def test_a_benchmark_runs_small(name: str, tmp_path: Path) -> None:
    assert has_figures(run(name, SMALL[name], tmp_path))


@pytest.mark.variant(of="test_a_benchmark_runs_small")
@pytest.mark.long
@pytest.mark.parametrize("name", SMALL_ON_SLURM)
def test_a_benchmark_on_slurm_runs_small(name: str, tmp_path: Path, slurm_session: Cluster) -> None:
    """It boots a cluster of its own beside that of the session, which says here that this is possible."""
    assert has_figures(run(name, SMALL_ON_SLURM[name], tmp_path))


@pytest.mark.variant(of="test_a_benchmark_runs_small")
@pytest.mark.local
@pytest.mark.long
def test_a_round_of_a_head_is_measured_after_it_has_started_everywhere(tmp_path: Path) -> None:
    report = run("rendezvous_scale", SMALL_RENDEZVOUS, tmp_path)
    (row,) = report["rounds"]
    assert report["failed"] == []
    assert (row["nodes"], row["n"], row["messages"]) == (4, 2, 4)
    assert 0 < row["stop_s"] + row["claim_s"] + row["start_s"] <= row["round_s"] * 1.01
    assert len(report["idle"]) == len(rendezvous_scale.LEASES_S)


@pytest.mark.variant(of="test_a_benchmark_runs_small")
@pytest.mark.local
@pytest.mark.long
def test_the_loss_of_a_head_is_measured_until_all_others_work_again(tmp_path: Path) -> None:
    report = run("head_loss_scale", SMALL_HEAD_LOSS, tmp_path)
    (row,) = report["rows"]
    assert report["failed"] == []
    assert (row["nodes"], row["n"]) == (6, 1)
    assert row["recovery_s"] > 0
    assert row["dials_a_node"] > 0


@pytest.mark.local
@pytest.mark.long
def test_torchs_rounds_are_measured() -> None:
    command = [sys.executable, "-m", "benchmarks.torch_rendezvous", "2", "1"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S)
    assert float(done.stdout) > 0, done.stderr


def test_every_program_is_run_by_a_test() -> None:
    programs = {
        path.stem
        for path in (REPOSITORY / "benchmarks").glob("*.py")
        if re.search(r'^if __name__ == "__main__":$', path.read_text(), re.MULTILINE)
    }
    with_tests_of_their_own = {"against", "head_loss_scale", "local_share", "rendezvous_scale", "torch_rendezvous"}
    assert programs == {*SMALL, *SMALL_ON_SLURM, *IN_PAGES, *with_tests_of_their_own}
