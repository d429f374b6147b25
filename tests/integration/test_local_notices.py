"""Notices in real runs of two nodes: heard at the same call by all ranks, saved upon, and taken with exit code 75."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpc_elastic.api.requests import make_request, send
from hpc_elastic.rundir.records import utc_text
from tests.integration.conftest import Door, Run, whole_lines
from tests.slurm_sandbox.cluster import wait_until
from tests.tiers import variants

pytestmark = pytest.mark.local

# Ranks run apart by many steps, and meet only when they save, which takes part in a collective.
SAVES = """
import os, random, sys, time
import torch
import torch.distributed as dist
from hpc_elastic.worker import heartbeat, notice_received, on_notice, saving
dist.init_process_group("gloo")
rank = dist.get_rank()
dice = random.Random(f"{rank}/{sys.argv[1]}")
step = 0

def save(what):
    with saving():
        steps = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
        dist.all_gather(steps, torch.tensor([step]))
    found = {int(each) for each in steps}
    print(what, "alike" if found == {step} else f"NOT ALIKE: {found}", flush=True)

on_notice(lambda notice: save("called"))
print("ready", flush=True)
while True:
    time.sleep(dice.random() * 0.003 * (1 + rank % 3))
    step += 1
    heartbeat(step)
    if notice := notice_received():
        break
save(f"saved for {notice.reason}")
sys.exit(75)
"""


def give_notice(run: Run, reason: str = "operator", seconds_left: float | None = 60.0) -> None:
    send(run.layout, make_request("notice", reason=reason, seconds_left=seconds_left))


def events(run: Run, name: str) -> list[Any]:
    lines = [line for path in run.path.glob("nodes/*/events.jsonl") for line in whole_lines(path)]
    return [event for event in map(json.loads, lines) if event["name"] == name]


@pytest.mark.parametrize(
    "time", [0, *variants(*range(1, 50), of="test_all_ranks_save_together_and_the_run_stops_at_once")]
)
def test_all_ranks_save_together_and_the_run_stops_at_once(door: Door, time: int) -> None:
    door.write("train.py", SAVES)
    door.write(
        "job.yaml",
        f"name: saves\nsite: local\nnodes: 2\nworkers_per_node: 4\nentrypoint: {{script: train.py, args: [{time}]}}\n"
        "env: {GLOO_SOCKET_IFNAME: lo}\n",
    )
    run = door.submit("job.yaml")
    run.wait_for_output("ready")
    give_notice(run)
    result = run.wait_until_over(within_s=60)
    assert (result["state"], result["reason"], result["exit_code"]) == ("CANCELLED", "notice_taken", 10), run.story()
    assert result["cause"] == "ranks 0-7 exited 75 after the notice, to go on later (operator)"
    assert (result["restarts"], result["failures"]) == (0, {})
    said = [run.stdout(1, rank).splitlines() for rank in range(8)]
    assert said[0] in (["ready", *called, "saved for operator alike"] for called in ([], ["called alike"]))
    assert said == [said[0]] * 8
    (given,) = events(run, "notice.given")
    assert given["metadata"]["reason"] == "operator"
    run.assert_nothing_left()
    run.assert_records_valid()


SAVES_LONG = """
import os, sys, time
from hpc_elastic.worker import saving
rank, attempt = int(os.environ["RANK"]), int(os.environ["HPC_ELASTIC_ATTEMPT"])
if attempt == 2:
    sys.exit(0)
if rank == 1:
    while not os.path.exists("is_saving"):
        time.sleep(0.02)
    os._exit(7)
if rank == 0:
    with saving():
        open("is_saving", "w").close()
        time.sleep(float(sys.argv[1]))
        print("saved", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "seconds", [3.0, *variants(10.0, of="test_a_rank_that_saves_is_not_killed_by_its_neighbours_crash")]
)
def test_a_rank_that_saves_is_not_killed_by_its_neighbours_crash(door: Door, seconds: float) -> None:
    door.write("train.py", SAVES_LONG)
    door.write(
        "job.yaml",
        "name: long\nsite: local\nnodes: 2\nworkers_per_node: 2\n"
        f"entrypoint: {{script: train.py, args: [{seconds}]}}\nsignals: {{restart_grace: 1s}}\n",
    )
    run = door.submit("job.yaml")
    result = run.wait_until_over()
    assert (result["state"], result["restarts"]) == ("SUCCEEDED", 1), run.story()
    assert run.stdout(1, 0) == "saved\n"
    run.assert_nothing_left()
    run.assert_records_valid()


SAVES_AT_TERM = """
import os, signal, sys, time
def save(*_):
    print("saving", flush=True)
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        time.sleep(0.1)
    print("saved", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
if os.environ["HPC_ELASTIC_ATTEMPT"] == "2":
    sys.exit(0)
print("ready", flush=True)
time.sleep(600)
"""


def cancel(door: Door, run: Run) -> None:
    door.run("cancel", run.job_id)


def restart(door: Door, run: Run) -> None:
    door.run("restart", run.job_id)


def terminate(door: Door, run: Run) -> None:
    os.kill(run.agent_pid("local1"), signal.SIGTERM)


@pytest.mark.parametrize(
    "stop", [cancel, *variants(restart, terminate, of="test_a_handler_finishes_within_the_grace_of_every_stop")]
)
@pytest.mark.parametrize(
    ("saves_s", "grace_s"), [(3, 9), *variants((20, 30), of="test_a_handler_finishes_within_the_grace_of_every_stop")]
)
def test_a_handler_finishes_within_the_grace_of_every_stop(
    door: Door, stop: Callable[[Door, Run], None], saves_s: int, grace_s: int
) -> None:
    door.write("train.py", SAVES_AT_TERM)
    door.write(
        "job.yaml",
        "name: slow\nsite: local\nnodes: 2\nworkers_per_node: 1\n"
        f"entrypoint: {{script: train.py, args: [{saves_s}]}}\nsignals: {{restart_grace: 1s, grace: {grace_s}s}}\n",
    )
    run = door.submit("job.yaml")
    for rank in (0, 1):
        run.wait_for_output("ready", rank=rank)
    stop(door, run)
    run.wait_until_over()
    assert [run.stdout(1, rank) for rank in (0, 1)] == ["ready\nsaving\nsaved\n"] * 2, run.story()
    run.assert_nothing_left()
    run.assert_records_valid()


SIGNALLED = """
import os, signal, sys, time
def heard(*_):
    print("heard", flush=True)
    time.sleep(0.5)
    sys.exit(75)
if sys.argv[1] == "handler" and os.environ["RANK"] != "1":
    signal.signal(signal.SIGUSR2, heard)
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
if sys.argv[1] == "none":
    sys.exit(0)
time.sleep(0 if os.environ["RANK"] == "1" else 600)
"""


@pytest.mark.parametrize("notice", ["handler", "none"])
def test_the_signal_goes_to_ranks_with_a_handler_and_only_where_it_is_asked_for(door: Door, notice: str) -> None:
    door.write("train.py", SIGNALLED)
    asked = "signals: {notice: USR2}\n" if notice == "handler" else ""
    door.write(
        "job.yaml",
        "name: old\nsite: local\nnodes: 2\nworkers_per_node: 2\n"
        f"entrypoint: {{script: train.py, args: [{notice}]}}\n{asked}",
    )
    run = door.submit("job.yaml")
    for rank in range(4):
        run.wait_for_output("ready", rank=rank)
    give_notice(run)
    if notice == "handler":
        run.wait_for_output("heard")
        run.wait_for_output("heard", rank=2)
    else:
        wait_until(lambda: events(run, "notice.given"), "the notice is given", within_s=20, otherwise=run.story)
    door.write("go", "")
    result = run.wait_until_over()
    if notice == "none":
        assert result["state"] == "SUCCEEDED", run.story()
        assert [run.stdout(1, rank) for rank in range(4)] == ["ready\n"] * 4
    else:
        assert (result["reason"], result["failures"]) == ("notice_taken", {}), run.story()
        assert [run.stdout(1, rank) for rank in (0, 2, 3)] == ["ready\nheard\n"] * 3
        said = (run.path / "agents" / "local0.out").read_text()
        assert said.count("rank 1 has no handler for USR2") == 1
    run.assert_nothing_left()
    run.assert_records_valid()


GOES_ON = """
import os, sys, time
from hpc_elastic.worker import notice_received
attempt, polls = os.environ["HPC_ELASTIC_ATTEMPT"], 0
print("attempt", attempt, flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
    polls += 1
    notice = notice_received()
    if polls == 1:
        print("has polled", flush=True)
    if notice:
        print("poll", "1" if polls == 1 else "n", "heard", notice.reason, notice.seconds_left > 0, flush=True)
        while not os.path.exists("go"):
            time.sleep(0.02)
"""


def test_a_successor_of_the_head_gives_the_notice_again_and_status_says_it(door: Door) -> None:
    door.write("train.py", GOES_ON)
    door.write(
        "job.yaml",
        "name: heir\nsite: local\nnodes: {min: 1, max: 2}\nworkers_per_node: 2\nentrypoint: {script: train.py}\n"
        "elastic: {lease: 5s}\n",
    )
    run = door.submit("job.yaml")
    for rank in range(4):
        run.wait_for_output("has polled", rank=rank)
    give_notice(run, "preemption", 600.0)
    for rank in range(4):
        run.wait_for_output("poll n heard preemption True", rank=rank)
    status = door.run("status").stdout
    assert "the workers will be stopped in about 600 s (preemption," in status
    os.kill(run.agent_pid("local0"), signal.SIGKILL)
    for rank in (0, 1):
        run.wait_for_output("heard preemption True", attempt=2, rank=rank)
    door.write("go", "")
    assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()
    assert sorted(event["node"] for event in events(run, "notice.given")) == ["local0", "local1"]
    run.assert_nothing_left()
    run.assert_records_valid(killed={"local0"})


def test_a_successor_of_the_head_counts_an_announced_stop_by_the_nodes_own_clock(door: Door) -> None:
    """The clock of the machine that asked for it is an hour behind."""
    door.write("train.py", GOES_ON)
    door.write(
        "job.yaml",
        "name: heir\nsite: local\nnodes: {min: 1, max: 2}\nworkers_per_node: 2\nentrypoint: {script: train.py}\n"
        "elastic: {lease: 5s}\n",
    )
    run = door.submit("job.yaml")
    for rank in range(4):
        run.wait_for_output("has polled", rank=rank)
    asked = make_request("stop", reason="hpc-elastic stop", seconds_left=600.0, allocation=1)
    send(run.layout, replace(asked, time=utc_text(time.time() - 3600.0)))
    for rank in range(4):
        run.wait_for_output("poll n heard operator True", rank=rank)
    os.kill(run.agent_pid("local0"), signal.SIGKILL)
    for rank in (0, 1):
        run.wait_for_output("heard operator True", attempt=2, rank=rank)
    (later,) = [event for event in events(run, "notice.given") if event["node"] == "local1"]
    assert 300 < later["metadata"]["seconds_left"] < 600, run.story()
    door.write("go", "")
    assert run.wait_until_over()["state"] != "FAILED", run.story()
    run.assert_nothing_left()
