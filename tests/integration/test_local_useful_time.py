"""The meter of useful time says of a real run what the trainer itself wrote down."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hpc_elastic.useful_time.division import TimeUse
from tests.integration.conftest import Door
from tests.integration.useful_times import (
    TRAINER,
    assert_as_the_trainer_says,
    begun,
    last_step,
    told_by_trainer,
)

pytestmark = pytest.mark.local

STALL_S = 3.0
JOB = f"""
site: local
nodes: 2
workers_per_node: 1
time: 10m
entrypoint: {{script: {TRAINER}, args: [100, 0.1, 20]}}
restart: {{max_restarts: 3, backoff: {{first: 0s}}}}
signals: {{grace: 5s, restart_grace: 1s}}
stall_timeout: {STALL_S:g}s
metrics: {{textfile: run.prom}}
"""


def test_a_crash_repeated_steps_and_a_stall_are_told_apart(door: Door) -> None:
    door.write("job.yaml", JOB)
    run = door.submit("job.yaml", wait=True)
    assert run.result()["attempts"] == 3, run.story()
    seconds = assert_as_the_trainer_says(run, door.folder, within_s=0.5)
    lines = told_by_trainer(door.folder)
    # Stacks are taken, and the workers stopped, between the end of the stall and the next start.
    silent_s = begun(lines, 3) - last_step(lines, 2)
    assert STALL_S <= seconds[TimeUse.STALLED] <= silent_s
    assert 0 < seconds[TimeUse.RESTARTING] <= begun(lines, 2) - last_step(lines, 1) + silent_s - STALL_S + 2
    run.assert_records_valid()

    families = {
        each.name: each.samples for each in text_string_to_metric_families((door.folder / "run.prom").read_text())
    }
    shown = {each.labels["use"]: each.value for each in families["hpc_elastic_time_use_seconds"]}
    assert shown["training"] == pytest.approx(seconds[TimeUse.TRAINING], abs=0.2)
    (share,) = families["hpc_elastic_useful_time_ratio"]
    assert share.value == pytest.approx(run.result()["useful_time"]["useful_share"], abs=0.05)

    told = json.loads(door.run("status", str(run.path), "--json").stdout)["useful_time"]
    assert told["seconds"]["training"] == pytest.approx(seconds[TimeUse.TRAINING], abs=0.01)
    text = door.run("status", str(run.path)).stdout
    assert f"useful time    {100 * told['useful_share']:.0f} % of " in text
