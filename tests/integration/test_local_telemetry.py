"""Events and metrics of runs of several nodes and roles: each tells of its own workers, the head's of the run."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hpc_elastic.rundir.store import read_lines
from tests.integration.conftest import Door, Run

pytestmark = pytest.mark.local

# Rank 2, which is on the second node, fails once, as soon as both agents have told that their workers have started:
# an agent that is stopped before that has nothing to tell.
SCRIPT = """
import glob, os, sys, time

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "2":
        while len(glob.glob(os.environ["HPC_ELASTIC_RUN_DIR"] + "/attempts/*/nodes/*.json")) < 2:
            time.sleep(0.01)
        sys.exit(3)
    time.sleep(60)
"""
JOB = """
site: local
nodes: 2
workers_per_node: 2
entrypoint: {script: work.py}
env: {COLLECTOR: FOLDER}
metrics: {textfile: "${COLLECTOR}/run.prom"}
restart: {max_restarts: 4}
"""


@pytest.fixture
def run(door: Door) -> Run:
    door.write("work.py", SCRIPT)
    door.write("job.yaml", JOB.replace("FOLDER", str(door.folder)))
    return door.submit("job.yaml", wait=True)


def torchs_events(run: Run, node: str) -> list[dict[str, Any]]:
    return [event for event in read_lines(run.layout.events(node)) if event["source"] is not None]


def test_each_node_tells_of_its_own_workers_and_the_heads_of_the_run(run: Run, door: Door) -> None:
    run.assert_records_valid()
    told = {
        node: Counter((event["metadata"]["state"], event["attempt"]) for event in torchs_events(run, node))
        for node in ("local0", "local1")
    }
    second = {("RENDEZVOUS", 2): 1, ("START", 2): 2, ("SUCCEEDED", 2): 3}  # two workers and the agent
    first = {("RENDEZVOUS", 1): 1, ("START", 1): 2}
    of_the_head = {("ASSIGN_WORKER_RANKS", 0): 1, ("ASSIGN_WORKER_RANKS", 1): 1}
    assert told["local0"] == {**first, **of_the_head, ("TERMINATED", 1): 2, **second}
    of_the_failure = {("UNHEALTHY", 1): 1, ("TERMINATED", 1): 1, ("FAILED", 1): 1}
    assert told["local1"] == {**first, **of_the_failure, **second}
    again = [event for node in told for event in torchs_events(run, node) if event["attempt"] == 2]
    assert {event["metadata"]["agent_restarts"] for event in again} == {1}
    assert {event["allocation"] for node in told for event in read_lines(run.layout.events(node))} == {1}

    values = {line["name"]: line["value"] for line in read_lines(run.layout.metrics("local0"))}
    assert values["workers.default.run_success_with_retries"] == 1
    assert values["workers.default.flakiness"] == 20
    assert values["workers.default.remaining_restarts"] == 3
    others = {line["name"] for line in read_lines(run.layout.metrics("local1"))}
    assert "workers.default.remaining_restarts" in others
    assert not [name for name in others if "run_" in name or "flakiness" in name]

    text = (door.folder / "run.prom").read_text()
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    (flakiness,) = families["hpc_elastic_workers_flakiness"]
    assert flakiness.labels == {"run": run.result()["run"], "role": "default", "node": "local0"}
    assert flakiness.value == 20


# The first attempt of the readers fails; the trainer ends when the second one is through.
ROLES_SCRIPT = """
import os, pathlib, sys, time

through = pathlib.Path("through")
if os.environ["ROLE_NAME"] == "trainer":
    while not through.exists():
        time.sleep(0.01)
elif os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
else:
    through.touch()
"""
ROLES_JOB = """
site: local
metrics: {textfile: run.prom}
restart: {max_restarts: 4}
roles:
  - {name: trainer, nodes: 1, workers_per_node: 2, entrypoint: {script: work.py}, restart: restart_role}
  - {name: reader, nodes: 2, workers_per_node: 1, entrypoint: {script: work.py}, restart: restart_role}
"""


@pytest.mark.variant(of="test_each_node_tells_of_its_own_workers_and_the_heads_of_the_run")
def test_a_role_that_restarts_alone_tells_of_its_own_attempts(door: Door) -> None:
    door.write("work.py", ROLES_SCRIPT)
    door.write("job.yaml", ROLES_JOB)
    run = door.submit("job.yaml", wait=True)
    run.assert_records_valid()
    told = {
        node: Counter((event["metadata"]["state"], event["attempt"]) for event in torchs_events(run, node))
        for node in ("local0", "local1", "local2")
    }
    assert told["local0"] == {
        ("RENDEZVOUS", 1): 1,
        ("ASSIGN_WORKER_RANKS", 0): 1,
        ("ASSIGN_WORKER_RANKS", 1): 1,
        ("START", 1): 2,
        ("SUCCEEDED", 1): 3,  # two workers and the agent: they ran on
    }
    readers = told["local1"] + told["local2"]
    assert readers["FAILED", 1] + readers["TERMINATED", 1] == 2
    assert readers["FAILED", 1] >= 1
    assert {name: count for name, count in readers.items() if name[1] == 2} == {
        ("RENDEZVOUS", 2): 2,
        ("START", 2): 2,
        ("SUCCEEDED", 2): 4,
    }
    again = [event for node in ("local1", "local2") for event in torchs_events(run, node) if event["attempt"] == 2]
    assert {event["metadata"]["agent_restarts"] for event in again} == {1}
    assert {json.loads(event["metadata"]["metadata"])["entry_point"] for event in again} == {"work.py"}

    lines = list(read_lines(run.layout.metrics("local0")))
    values = {line["name"]: line["value"] for line in lines}
    for role in ("trainer", "reader"):
        assert values[f"workers.{role}.run_success_with_retries"] == 1
        assert values[f"workers.{role}.flakiness"] == 20
    assert not [line for line in read_lines(run.layout.metrics("local1")) if "flakiness" in line["name"]]

    families = {
        family.name: family.samples for family in text_string_to_metric_families((door.folder / "run.prom").read_text())
    }
    flakiness = families["hpc_elastic_workers_flakiness"]
    assert [(sample.labels["role"], sample.value) for sample in flakiness] == [("trainer", 20.0), ("reader", 20.0)]
    assert {sample.labels["run"] for sample in flakiness} == {run.result()["run"]}
