"""What a person asks a run for while it goes on, on the local backend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Door

pytestmark = pytest.mark.local

SERVES = """
import os, signal, sys, time
def leave(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("attempt", os.environ["HPC_ELASTIC_ATTEMPT"], flush=True)
time.sleep(600)
"""


def test_a_restart_starts_all_workers_again_and_costs_nothing(door: Door) -> None:
    door.write("train.py", SERVES)
    door.write(
        "job.yaml",
        "name: again\nsite: local\nnodes: 2\nworkers_per_node: 2\nentrypoint: {script: train.py}\n"
        "restart: {max_restarts: 0}\n",
    )
    run = door.submit("job.yaml")
    for rank in range(4):
        run.wait_for_output("attempt 1", rank=rank)
    assert door.run("restart").stdout == "again: attempt 2 is opened\n"
    for rank in range(4):
        run.wait_for_output("attempt 2", attempt=2, rank=rank)
    assert "saved" in run.stdout(1, 3)
    status = door.run("status").stdout
    assert "asked for a restart" in status
    door.run("cancel")
    result = run.result()
    assert (result["state"], result["attempts"], result["restarts"]) == ("CANCELLED", 2, 0)
    over = door.run("restart", exit_code=5)
    assert "again is over already" in over.stderr
    run.assert_records_valid()


def test_a_drained_node_is_replaced_by_the_spare_that_is_left_and_costs_nothing(door: Door) -> None:
    door.write("train.py", SERVES)
    door.write(
        "job.yaml",
        "name: moves\nsite: local\nnodes: {min: 2, max: 2}\nspares: 2\nworkers_per_node: 1\n"
        "entrypoint: {script: train.py}\nrestart: {max_restarts: 0}\n",
    )
    run = door.submit("job.yaml")
    for rank in range(2):
        run.wait_for_output("attempt 1", rank=rank)
    refused = door.run("drain", "--node", "local7", exit_code=2)
    assert "none of the run's nodes: local0, local1, local2, local3" in refused.stderr
    told = door.run("drain", "--node", "local2").stdout
    assert told.startswith("moves: local2, a spare, will not be used: drained by ")
    assert "set aside      local2 (drained by " in door.run("status").stdout
    assert "local2 is set aside already: drained by" in door.run("drain", "--node", "local2").stdout
    assert door.run("drain", "--node", "local0").stdout == "moves: attempt 2 is opened, without local0\n"
    for rank in range(2):
        run.wait_for_output("attempt 2", attempt=2, rank=rank)
    assert set(json.loads(Path(run.layout.claim(2)).read_text())["members"]) == {"local1", "local3"}
    door.run("cancel")
    assert run.result()["restarts"] == 0
    run.assert_records_valid()


SAVES_ON_NOTICE = """
import os, sys, time
from hpc_elastic.worker import notice_received
print("ready", flush=True)
while True:
    time.sleep(0.02)
    if notice := notice_received():
        print("saved for", notice.reason, notice.seconds_left > 0, flush=True)
        if sys.argv[1] == "leaves":
            sys.exit(75)
        time.sleep(600)
"""


@pytest.mark.parametrize("then", ["leaves", "goes on"])
def test_a_stopped_run_saves_first_and_ends_when_all_have_left_or_their_time_is_over(door: Door, then: str) -> None:
    door.write("train.py", SAVES_ON_NOTICE)
    door.write(
        "job.yaml",
        "name: told\nsite: local\nnodes: 2\nworkers_per_node: 2\n"
        f"entrypoint: {{script: train.py, args: [{then}]}}\nrestart: {{max_restarts: 0}}\nsignals: {{grace: 5s}}\n",
    )
    run = door.submit("job.yaml")
    for rank in range(4):
        run.wait_for_output("ready", rank=rank)
    refused = door.run("stop", "--requeue", exit_code=2)
    assert "nothing starts a job of this machine again" in refused.stderr
    lead = "300s" if then == "leaves" else "3s"
    told = door.run("stop", "--lead", lead)
    assert told.stdout.startswith("told ended: CANCELLED, stopped by ")
    result = run.result()
    assert (result["state"], result["reason"], result["exit_code"]) == ("CANCELLED", "stop_requested", 10), run.story()
    assert ("exited 75 after the notice" in result["cause"]) == (then == "leaves")
    assert [run.stdout(1, rank).splitlines()[1:] for rank in range(4)] == [["saved for operator True"]] * 4
    assert (result["restarts"], result["failures"]) == (0, {})
    run.assert_nothing_left()
    run.assert_records_valid()


SAVES_IN_ITS_GRACE = """
import signal, time
from hpc_elastic.worker import notice_received
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("TERM"))
print("ready", flush=True)
while not told:
    notice_received()
    time.sleep(0.002)
print("saved after", *told, flush=True)
"""


def test_ranks_that_ask_for_notices_have_their_grace_where_notice_and_stop_come_together(door: Door) -> None:
    """The calls that had begun waited for an agreement that the stop had ended, until KILL."""
    door.write("train.py", SAVES_IN_ITS_GRACE)
    door.write(
        "job.yaml",
        "name: hurried\nsite: local\nnodes: 2\nworkers_per_node: 2\nentrypoint: {script: train.py}\n"
        "restart: {max_restarts: 0}\nsignals: {grace: 60s}\n",
    )
    run = door.submit("job.yaml")
    for rank in range(4):
        run.wait_for_output("ready", rank=rank)
    assert door.run("stop", "--lead", "0s").stdout.startswith("hurried ended: CANCELLED, stopped by ")
    assert [run.stdout(1, rank).splitlines()[1:] for rank in range(4)] == [["saved after TERM"]] * 4, run.story()
    run.assert_records_valid()
