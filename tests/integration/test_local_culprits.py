"""The rank that fails first is among the failures, although its connections close before its failure is complete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.tiers import variants

pytestmark = pytest.mark.local

# The usual shape of a script: the peers of rank 2 fail of its closed connections, mostly before it ends itself.
SCRIPT = """
import sys
import torch
import torch.distributed as dist

def train(rank):
    for step in range(10**6):
        if (step, rank) == (20, 2):
            {fail}
        dist.all_reduce(torch.ones(64))

dist.init_process_group("gloo")
try:
    train(dist.get_rank())
finally:
    dist.destroy_process_group()
"""
# Rank 2 stops itself, as a debugger would; the others wait for it as long as a collective may take.
STOPS_ITSELF = """
import datetime, os, signal
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
for step in range(10**6):
    if (step, dist.get_rank()) == (20, 2):
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(64))
"""
JOB = """
nodes: 2
workers_per_node: 2
resources: {{cpus_per_worker: 1}}
time: 5m
entrypoint: {{script: train.py}}
env: {{OMP_NUM_THREADS: 1}}
restart: {{max_restarts: 0}}
start: {start}
"""
RAISES = 'raise RuntimeError("a cosmic ray")'


@pytest.mark.variant(of="test_a_rank_that_has_stopped_itself_is_named_as_the_cause")
@pytest.mark.parametrize(
    ("fail", "start", "failure"),
    [
        (RAISES, "fork", (1, "RuntimeError: a cosmic ray")),
        *variants(
            ("sys.exit(3)", "fork", (3, "exit code 3")),
            (RAISES, "spawn", (1, "RuntimeError: a cosmic ray")),
            of="test_a_rank_that_has_stopped_itself_is_named_as_the_cause",
        ),
    ],
)
def test_a_rank_that_closes_its_connections_before_it_fails_is_among_the_failures(
    door: Door, fail: str, start: str, failure: tuple[int, str]
) -> None:
    door.write("train.py", SCRIPT.format(fail=fail))
    door.write("job.yaml", JOB.format(start=start))
    run = door.submit("job.yaml", wait=True, exit_code=1)
    found = run.result()["failures"]["2"]
    assert (found["exitcode"], found["message"]) == failure
    error = json.loads(Path(found["error_file"]).read_text())
    assert error["pid"] == found["pid"]
    assert 'train.py", line 9, in train' in error["message"]["extraInfo"]["py_callstack"]
    run.assert_nothing_left()
    run.assert_records_valid()


def test_a_rank_that_has_stopped_itself_is_named_as_the_cause(door: Door) -> None:
    door.write("train.py", STOPS_ITSELF)
    door.write("job.yaml", JOB.format(start="fork") + "signals: {grace: 2s, restart_grace: 1s}\n")
    run = door.submit("job.yaml", wait=True, exit_code=1)
    cause = run.result()["root_cause"]
    assert (cause["class"], cause["rank"], cause["silent"]) == ("silent", 2, "2"), run.result()
    assert "rank 2 on local1 was stopped by a signal such as SIGSTOP, or by a debugger" in run.result()["cause"]
    run.assert_nothing_left()
    run.assert_records_valid()
