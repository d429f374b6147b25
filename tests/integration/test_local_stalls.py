"""Ranks that stop in real runs of two nodes: found in time, named, with the stacks of all, and started again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.failures.stacks import RankStack, group_stacks
from tests.integration.conftest import Door, Run
from tests.tiers import variants

pytestmark = pytest.mark.local

STALLING = Path(__file__).with_name("stalling.py")
STALL_S = 4.0
JOB = f"""
name: stalls
site: local
nodes: 2
workers_per_node: 2
time: 10m
entrypoint: {{script: {STALLING}, args: [HOW, RANK]}}
restart: {{max_restarts: 1}}
signals: {{grace: 5s, restart_grace: 1s}}
stall_timeout: {STALL_S:g}s
env: {{GLOO_SOCKET_IFNAME: lo}}
"""


def submit(door: Door, how: str, rank: int = 3, *more: str) -> Run:
    door.write("job.yaml", JOB.replace("HOW", how).replace("RANK", str(rank)))
    return door.submit("job.yaml", *more)


def events(run: Run, name: str) -> list[Any]:
    lines = [line for path in run.path.glob("nodes/*/events.jsonl") for line in path.read_text().splitlines()]
    found = [event for event in map(json.loads, lines) if event["name"] == name]
    return sorted(found, key=lambda event: event["time_ns"])


def stacks(run: Run, attempt: int = 1) -> dict[int, str]:
    paths = Path(run.layout.ranks(attempt)).glob("*/stack.txt")
    return {int(path.parent.name): path.read_text() for path in paths}


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ("lock", "is in stop_somewhere (stalling.py:"),
        *variants(
            ("sigstop", "gave no stack: its process is stopped by a signal"),
            ("sleeps_in_c", "is in stop_somewhere (stalling.py:"),
            ("holds_gil", "is in stop_somewhere (stalling.py:"),
            ("child", "is in stop_somewhere (stalling.py:"),
            of="test_a_rank_that_stops_is_named_and_the_run_goes_on",
        ),
    ],
)
def test_a_rank_that_stops_is_named_and_the_run_goes_on(door: Door, how: str, where: str) -> None:
    run = submit(door, how)
    result = run.wait_until_over()
    assert (result["state"], result["attempts"], result["restarts"]) == ("SUCCEEDED", 2, 1), run.story()
    failed = events(run, "worker.failed")
    assert failed[0]["metadata"]["rank"] == 3, failed
    error = run.read(run.layout.error(1, 3))
    assert error["class"] == "stalled"
    assert error["message"]["message"].startswith(f"no heartbeat within stall_timeout (4 s): it {where}")
    taken = stacks(run)
    assert sorted(taken) == [0, 1, 2, 3]
    nodes = ("local0", "local0", "local1", "local1")
    groups = group_stacks(RankStack(rank=rank, node=nodes[rank], text=text) for rank, text in taken.items())
    assert [group.ranks for group in groups] == [(3,), (0, 1, 2)], [group.sentence(of_nodes=2) for group in groups]
    assert groups[1].sentence(of_nodes=2).startswith("3 ranks wait in all_reduce (stalling.py:")
    stalled_at, begun_at = events(run, "ranks.stalled")[0]["time_ns"], events(run, "attempt.started")[0]["time_ns"]
    assert (stalled_at - begun_at) / 1e9 > STALL_S
    ends = json.loads(Path(run.layout.claim(2)).read_text())
    assert "rank 3" in ends["reason"], ends
    run.assert_records_valid()


@pytest.mark.long
def test_a_rank_that_skips_a_collective_is_apart_from_those_that_wait_for_it(door: Door) -> None:
    run = submit(door, "skips")
    assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()
    nodes = ("local0", "local0", "local1", "local1")
    groups = group_stacks(RankStack(rank=rank, node=nodes[rank], text=text) for rank, text in stacks(run).items())
    assert [group.ranks for group in groups] == [(3,), (0, 1, 2)], [group.sentence(of_nodes=2) for group in groups]
    assert all(group.where.is_waiting for group in groups)


WAITS_ALONE = """
import os
import torch.distributed as dist
from hpc_elastic.worker import heartbeat
heartbeat(1)
if os.environ["HPC_ELASTIC_ATTEMPT"] == "1":
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/met", rank=0, world_size=2)
"""


@pytest.mark.variant(of="test_a_rank_that_skips_a_collective_is_apart_from_those_that_wait_for_it")
@pytest.mark.long
def test_the_only_rank_of_a_world_waits_for_no_other_and_failed_by_itself(door: Door) -> None:
    door.write("train.py", WAITS_ALONE)
    job = "name: alone\nsite: local\nentrypoint: {script: train.py}\nstall_timeout: 2s\nrestart: {max_restarts: 1}\n"
    door.write("job.yaml", job + "signals: {restart_grace: 1s}\n")
    run = door.submit("job.yaml")
    result = run.wait_until_over()
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 2), run.story()
    claim = run.read(run.layout.claim(2))
    assert claim["root_cause"]["class"] == "stalled", claim
    assert "consequence" not in claim["reason"], claim


@pytest.mark.variant(of="test_a_rank_that_stops_is_named_and_the_run_goes_on")
@pytest.mark.long
def test_a_rank_that_never_beats_is_left_alone_while_others_do(door: Door) -> None:
    run = submit(door, "never", 1, "--set", "stall_timeout=3s")  # half of what it takes
    result = run.wait_until_over()
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 1), run.story()


@pytest.mark.long
def test_a_rank_without_a_first_heartbeat_fails_if_start_timeout_says_so(door: Door) -> None:
    door.write("train.py", "import time\ntime.sleep(600)\n")
    job = "name: silent\nsite: local\nentrypoint: {script: train.py}\nstart_timeout: 5s\nrestart: {max_restarts: 0}\n"
    door.write("job.yaml", job)
    began = time.monotonic()
    run = door.submit("job.yaml")
    result = run.wait_until_over()
    assert time.monotonic() - began < 60
    assert (result["state"], result["exit_code"]) == ("FAILED", 1), result
    assert result["failures"]["0"]["class"] == "stalled"
    assert result["failures"]["0"]["message"].startswith(
        "no first heartbeat within start_timeout (5 s): it is at train.py:2"
    )


WAITING = """
import sys, threading, time
def wait_for_work(): time.sleep(600)
def serve():
    print("serves", flush=True)
    threading.Event().wait()
import os
serve() if os.environ["RANK"] == "1" else (print("waits", flush=True), wait_for_work())
"""


def test_stacks_are_shown_on_demand_and_nothing_is_stopped(door: Door) -> None:
    """The script calls no heartbeat, and the job file names no bound."""
    door.write("train.py", WAITING)
    door.write("job.yaml", "name: looks\nsite: local\nnodes: 2\nworkers_per_node: 2\nentrypoint: {script: train.py}\n")
    run = door.submit("job.yaml")
    for rank, word in enumerate(("waits", "serves", "waits", "waits")):
        run.wait_for_output(word, rank=rank)
    shown = door.run("stacks").stdout.splitlines()
    assert shown == [
        "rank 1 on local0 is in wait (train.py:6)",
        "3 ranks are in wait_for_work (train.py:3): 0,2-3",
    ]
    told = json.loads(door.run("stacks", "--json", "--rank", "1").stdout)
    assert [group["ranks"] for group in told["groups"]] == ["1", "0,2-3"]
    assert "line 6 in serve" in told["stacks"]["1"]["stack"]
    assert told["missing"] == []
    assert run.attempts() == [1]
    assert not run.is_over()
    door.run("cancel")
    assert events(run, "ranks.stalled") == []
