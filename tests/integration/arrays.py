"""Arrays of runs of the real command, and what is asked of them afterwards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.conftest import Door, Run
from tests.record_schemas import assert_valid
from tests.slurm_sandbox.cluster import wait_until

JOB = """\
name: probe
site: {site}
nodes: 1
workers_per_node: 1
time: 10m
resources: {{cpus_per_worker: 1}}
restart: {{max_restarts: 0}}
signals: {{grace: 8s, restart_grace: 2s}}
env: {{SEED: "${{seed}}"}}
entrypoint: {{script: train.py, args: ["--lr=${{lr}}"]}}
"""
# Says what it got; fails where it is told so; waits if there is a file `wait` beside it, until it is stopped.
TRAIN = """
import os, signal, sys

print(*sys.argv[1:], os.environ["SEED"], os.environ["TORCHELASTIC_RUN_ID"], flush=True)
if os.path.exists("wait"):
    print("waiting", flush=True)
    signal.pause()
sys.exit(3 if (sys.argv[1], os.environ["SEED"]) == ("--lr=2", "0") else 0)
"""
SWEEP = ("--array", "lr=1,2", "seed=0..1")


@dataclass(frozen=True)
class Array:
    """An array, by what `submit --json` said."""

    job_id: str
    path: Path
    runs: tuple[Run, ...]

    def results(self) -> list[tuple[str, int]]:
        """State and exit code of each run, which is over."""
        results = [run.result() for run in self.runs]
        return [(result["state"], result["exit_code"]) for result in results]

    def story(self) -> str:
        return "".join(run.story() for run in self.runs)

    def wait_for_waiting(self, *tasks: int) -> None:
        """Waits until the workers of these tasks wait."""
        for task in tasks:
            self.runs[task].wait_for_output("waiting")
            self.runs[task].wait_until_started()

    def assert_over(self, *results: tuple[str, int]) -> None:
        """Every run ended so, left no process, and its records are valid."""
        assert self.results() == list(results), self.story()
        for run in self.runs:
            run.assert_nothing_left(within_s=40)
            run.assert_records_valid()
        record = json.loads((self.path / "array.json").read_text())
        assert_valid(record, "array.json")


def write_job(door: Door, site: str, *, waits: bool = False) -> None:
    """Writes a job file and its script."""
    door.write("job.yaml", JOB.format(site=site))
    door.write("train.py", TRAIN)
    if waits:
        door.write("wait", "")


def submit(door: Door, *options: str, exit_code: int = 0) -> Array:
    """Submits four runs as an array."""
    done = door.run("submit", "job.yaml", "--json", *options, *SWEEP, exit_code=exit_code)
    told = json.loads(done.stdout)
    runs = tuple(Run.at(Path(task["run_dir"])) for task in told["tasks"])
    assert [run.job_id for run in runs] == [task["job_id"] for task in told["tasks"]]
    return Array(job_id=told["job_id"], path=Path(told["run_dir"]), runs=runs)


def status(door: Door, wanted: str) -> Any:
    """What `status --json` says."""
    return json.loads(door.run("status", "--json", wanted).stdout)


def wait_for_states(door: Door, array: Array, **states: int) -> None:
    """Waits until so many tasks are in these states."""
    wait_until(
        lambda: status(door, array.job_id)["states"] == states,
        f"the tasks are {states}",
        within_s=90,
        otherwise=lambda: door.run("status", array.job_id).stdout,
    )
