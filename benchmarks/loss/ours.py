"""A run of ours that loses a node: from the fault to the next step, and what a worker start takes in the same run."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.loss import training
from benchmarks.loss.steps import now, wait_for_start
from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import agent_pid
from tests.slurm_sandbox.cluster import Cluster

NODES, LEFT = 4, 3
LEASE_S = 3
PATIENCE_S = 60
SETTLES_S = 1.0  # what goes on around a start is over then
BATCH_HOST = "node1"
JOB = f"""\
name: loss
site: generic-slurm
nodes: {{min: {LEFT}, max: {NODES}}}
workers_per_node: 1
time: 10m
resources: {{cpus_per_worker: 1}}
entrypoint: {{script: training.py}}
elastic: {{lease: {LEASE_S}s}}
"""

Fault = Callable[[Cluster, Run], Callable[[], None]]  # looks for what it breaks, and gives what breaks it


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Seconds after the fault, and of one worker start of as many ranks."""

    noticed_s: float  # by the head or, if it is the head that is lost, by the first member
    opened_s: float  # the next attempt, once its claim is on disk
    started_s: float  # its first process
    recovered_s: float  # the first step of its last rank
    worker_start_s: float


def lose(slurm: Cluster, folder: Path, fault: Fault) -> Loss:
    """Trains on four nodes, breaks one, then restarts the ranks that are left once more, for comparison."""
    stamps = folder / "stamps"
    stamps.mkdir()
    run = submit(slurm, folder, stamps)
    wait_for_start(stamps, NODES, after=0, within_s=PATIENCE_S, story=run.story)
    run.wait_until_started()
    time.sleep(SETTLES_S)
    strike = fault(slurm, run)
    at, wall = now(), time.time()
    strike()
    recovered = wait_for_start(stamps, LEFT, after=at, within_s=PATIENCE_S, story=run.story)
    time.sleep(SETTLES_S)
    crashed = now()
    (stamps / "crash").touch()
    again = wait_for_start(stamps, LEFT, after=crashed, within_s=PATIENCE_S, story=run.story)
    (stamps / "stop").touch()
    result = run.wait_until_over(within_s=PATIENCE_S)
    if result["state"] != "SUCCEEDED":
        raise SystemExit(f"the run did not succeed: {result}\n{run.story()}")
    return Loss(
        noticed_s=first_event(run, "head.lost" if fault is power_off_batch_host else "node.lost", wall) - wall,
        opened_s=first_event(run, "attempt.opened", wall) - wall,
        started_s=recovered.began - at,
        recovered_s=recovered.stepped - at,
        worker_start_s=again.seconds,
    )


def submit(slurm: Cluster, folder: Path, stamps: Path) -> Run:
    (folder / "job.yaml").write_text(f"{JOB}env: {{OMP_NUM_THREADS: 1, STAMPS: {json.dumps(str(stamps))}}}\n")
    (folder / "training.py").write_text(Path(training.__file__).read_text())
    environ = {**slurm.environment, "XDG_STATE_HOME": str(folder / "state")}
    return Door(folder, environ, command=(sys.executable, "-m", "hpc_elastic")).submit("job.yaml")


def first_event(run: Run, name: str, after: float) -> float:
    """When the first event of this name happened after a moment; Unix seconds."""
    return min((at for each, at in events(run) if each == name and at > after), default=math.nan)


def events(run: Run) -> Iterator[tuple[str, float]]:
    for path in run.path.glob("nodes/*/events.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            yield event["name"], event["time_ns"] / 1e9


def ordinary_node(run: Run) -> str:
    """A node that is neither the batch host nor the head's."""
    head = run.read(run.layout.claim(1))["head"]
    return next(node for node in ("node3", "node4") if node != head)


def kill_agent(_slurm: Cluster, run: Run) -> Callable[[], None]:
    pid = agent_pid(run, ordinary_node(run))
    return lambda: os.kill(pid, signal.SIGKILL)


def cut_cable(slurm: Cluster, run: Run) -> Callable[[], None]:
    node = ordinary_node(run)
    return lambda: slurm.cut(node)


def power_off_batch_host(slurm: Cluster, _run: Run) -> Callable[[], None]:
    return lambda: slurm.kill(BATCH_HOST)
