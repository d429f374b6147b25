"""The meter of useful time on the real Slurm: a crash, a stall and a requeue, and the queue between two allocations."""

from __future__ import annotations

import re
from functools import partial

import pytest

from hpc_elastic.useful_time.division import TimeUse
from tests.integration.conftest import Door
from tests.integration.slurm_jobs import assert_over
from tests.integration.useful_times import (
    TRAINER,
    assert_as_the_trainer_says,
    begun,
    last_step,
    moment,
    told_by_trainer,
)
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

STALL_S = 4.0
JOB = f"""
site: generic-slurm
nodes: 2
workers_per_node: 1
time: 10m
resources: {{cpus_per_worker: 1}}
entrypoint: {{script: {TRAINER}, args: [180, 0.1, 20]}}
restart: {{max_restarts: 3, backoff: {{first: 0s}}}}
signals: {{grace: 5s, restart_grace: 1s}}
stall_timeout: {STALL_S:g}s
metrics: {{comment: true}}
"""


def has_reached(door: Door, attempt: int, step: int) -> bool:
    """Return whether an attempt has done a step."""
    lines = told_by_trainer(door.folder)
    return any(line["attempt"] == attempt and line.get("step", 0) >= step for line in lines)


@pytest.mark.variant(of="test_a_crash_repeated_steps_and_a_stall_are_told_apart")
@pytest.mark.mirrored
def test_a_crash_a_stall_and_a_requeue_are_told_apart(slurm_door: Door, slurm: Cluster) -> None:
    slurm_door.write("job.yaml", JOB)
    run = slurm_door.submit("job.yaml")
    wait_until(partial(has_reached, slurm_door, 3, 110), "the third attempt trains", within_s=90, otherwise=run.story)
    shown = slurm.run("squeue", "--noheader", "--jobs", run.job_id, "--Format=Comment:200").stdout
    assert re.match(r"hpc-elastic: attempt [123], useful [0-9]+ % of [0-9hms]+", shown), shown
    slurm.run("scontrol", "requeue", run.job_id)
    run.wait_until_over(within_s=240)
    result = assert_over(run, "SUCCEEDED", 0)
    assert result["attempts"] == 4, run.story()
    seconds = assert_as_the_trainer_says(run, slurm_door.folder, within_s=1.0)
    spent, lines = result["useful_time"], told_by_trainer(slurm_door.folder)
    assert [each["allocation"] for each in spent["allocations"]] == [1, 2]
    assert STALL_S <= seconds[TimeUse.STALLED] <= begun(lines, 3) - last_step(lines, 2)
    waited_s = begun(lines, 1) - moment(run.read(run.layout.submission)["submitted"])
    waited_s += begun(lines, 4) - last_step(lines, 3)
    started_s = sum(seconds[use] for use in (TimeUse.STARTING, TimeUse.WAITING, TimeUse.RESTARTING, TimeUse.ENDED))
    assert waited_s - started_s - 1 <= spent["queued_s"] <= waited_s
