"""A run that succeeds and a run that fails, by torchrun and by ours: the same events with the same keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.elastic.metrics import METRIC_GROUP
from hpc_elastic.rundir.store import read_lines
from tests.integration.conftest import Door, Run
from tests.tiers import variants
from tests.without_torch import hide_compiler

pytestmark = pytest.mark.local

NAME = "torchelastic.worker.status."
# Rank 1 fails in so many attempts, while rank 0 would go on.
SCRIPT = """
import os, signal, sys, time
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < int(sys.argv[1]):
        if os.environ["RANK"] == "1":
            raise ValueError("a cosmic ray")
        time.sleep(60)

main()
"""

Event = dict[str, Any]
WorkerEnd = tuple[str, int, object, int]  # state, rank, exit code, restarts


def torchrun(folder: Path, failures: int, *, max_restarts: int) -> list[Event]:
    """The events of torchrun's agent, in their order."""
    arguments = ["--standalone", "--nproc-per-node=2", f"--max-restarts={max_restarts}", "--event-log-handler=console"]
    environment = {**hide_compiler(os.environ), "OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"}
    environment["TMPDIR"] = str(folder)  # where torchrun leaves the folder of the logs of a run that failed
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments, "train.py", str(failures)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    lines = (line for line in done.stderr.splitlines() if line.startswith('{"name"'))
    return [json.loads(line) for line in lines]


def ours(door: Door, failures: int, *, max_restarts: int) -> tuple[Run, list[Event]]:
    """The events of our agent that torch's has too, in their order."""
    job = f"""
site: local
nodes: 1
workers_per_node: 2
entrypoint: {{script: train.py, args: ["{failures}"]}}
restart: {{max_restarts: {max_restarts}}}
metrics: {{textfile: run.prom}}
"""
    door.write("job.yaml", job)
    run = door.submit("job.yaml", wait=True, exit_code=int(failures > max_restarts))
    run.assert_records_valid()
    return run, [event for event in read_lines(run.layout.events("local0")) if event["source"] is not None]


def metadata_keys(events: Sequence[Event], state: str, source: str) -> set[tuple[str, ...]]:
    """The keys of the events of this name and source, and those of the JSON in them: all the same, in order."""
    found = [event for event in events if event["name"] == NAME + state and event["source"] == source]
    return {(*event["metadata"], "/", *json.loads(event["metadata"]["metadata"])) for event in found}


def counted(events: Sequence[Event]) -> Counter[tuple[str, str]]:
    return Counter((event["name"].removeprefix(NAME), event["source"]) for event in events)


def worker_ends(events: Sequence[Event]) -> list[WorkerEnd]:
    """How each worker of the last attempt ended, which is all that torch tells."""
    ends = [
        event["metadata"] for event in events if event["source"] == "WORKER" and not event["name"].endswith("START")
    ]
    last = ends[-2:]
    return [
        (end["state"], end["global_rank"], json.loads(end["metadata"])["exit_code"], end["agent_restarts"])
        for end in last
    ]


def as_torch_documents(ends: list[WorkerEnd], *, is_failed: bool) -> list[WorkerEnd]:
    """What torch's RunResult says of itself: a worker that the agent stopped is in neither of its maps.

    Its SubprocessContext counts those that it stopped among the failures all the same, as exit code -15, so
    that no worker of torchrun is ever TERMINATED. Here it is.
    """
    if not is_failed:
        return ends
    assert ends[0] == ("FAILED", 0, [-15], 0), "torch has changed: its workers that were stopped are told otherwise"
    return [("TERMINATED", 0, [None], 0), *ends[1:]]


@pytest.fixture
def script(folder: Path) -> Path:
    (folder / "train.py").write_text(SCRIPT)
    return folder


@pytest.mark.parametrize(
    ("failures", "max_restarts"),
    [
        pytest.param(9, 0, id="fails"),
        *variants((0, 0), (1, 2), of="test_events_of_a_real_run_are_torchs", ids=["succeeds", "restarts"]),
    ],
)
def test_events_of_a_real_run_are_torchs(script: Path, door: Door, failures: int, max_restarts: int) -> None:
    theirs = torchrun(script, failures, max_restarts=max_restarts)
    run, mine = ours(door, failures, max_restarts=max_restarts)
    for name, source in counted(theirs):
        assert metadata_keys(mine, name, source) == metadata_keys(theirs, name, source), (name, source)
    is_failed = failures > max_restarts
    assert worker_ends(mine) == as_torch_documents(worker_ends(theirs), is_failed=is_failed)

    more = Counter[tuple[str, str]]()
    for _ in range(len(run.attempts()) - 1):  # torch tells nothing of these
        more.update([("TERMINATED", "WORKER"), ("FAILED", "WORKER")])
    # torch's agent enters this state for a worker in uninterruptible sleep only.
    more.update([("UNHEALTHY", "AGENT")] * min(failures, max_restarts + 1))
    if is_failed:
        more.update([("TERMINATED", "WORKER")])
        more.subtract([("FAILED", "WORKER")])
    expected = counted(theirs)
    expected.update(more)
    assert counted(mine) == expected
    if is_failed:
        (failed,) = [event for event in mine if event["name"] == NAME + "FAILED"]
        torchs = next(event for event in theirs if event["metadata"]["global_rank"] == 1 and "FAILED" in event["name"])
        assert json.loads(failed["metadata"]["raw_error"])["message"]["message"] == "ValueError: a cosmic ray"
        assert set(json.loads(torchs["metadata"]["raw_error"])) <= set(json.loads(failed["metadata"]["raw_error"]))

    metrics = {line["name"]: line["value"] for line in read_lines(run.layout.metrics("local0"))}
    assert metrics["workers.default.run_total"] == 1
    assert metrics["workers.default.flakiness"] == (100 if is_failed else 33 if failures else 0)
    assert {line["group_name"] for line in read_lines(run.layout.metrics("local0"))} == {METRIC_GROUP}
    assert "hpc_elastic_workers_flakiness{" in (script / "run.prom").read_text()
