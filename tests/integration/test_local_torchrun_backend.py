"""Real torchruns on this machine, whose agents meet by the backend hpc-elastic."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.torchruns import LEASE_S, is_alive, local_step, write_metadata
from tests.slurm_sandbox.cluster import wait_until
from tests.tiers import variants

pytestmark = pytest.mark.local


def test_a_crash_of_one_worker_restarts_all_at_a_fresh_store_and_they_finish(folder: Path) -> None:
    with local_step(folder, 2, "2", "--gloo", workers=1) as step:
        first = step.wait_for(1, 2)
        assert [one["HPC_ELASTIC_NODE"] for one in first] == ["local0", "local1"]
        step.fail(1, 1)
        second = step.wait_for(2, 2)
        assert [one["total"] for one in second] == [2.0] * 2
        assert {one["MASTER_PORT"] for one in first}.isdisjoint(one["MASTER_PORT"] for one in second)
        assert {(one["TORCHELASTIC_RUN_ID"], one["TORCHELASTIC_USE_AGENT_STORE"]) for one in second} == {
            ("torchrun-local-5-5", "True")
        }
        step.finish()
        assert step.exit_codes() == [0, 0]
        result = step.result()
        assert (result["state"], result["attempts"], result["restarts"]) == ("SUCCEEDED", 2, 1)
        step.assert_records_valid()
        step.assert_nothing_left()


@pytest.mark.variant(of="test_a_crash_of_one_worker_restarts_all_at_a_fresh_store_and_they_finish")
@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(0, id="of rank 0"),
        *variants(
            1, of="test_a_crash_of_one_worker_restarts_all_at_a_fresh_store_and_they_finish", ids=["of a member"]
        ),
    ],
)
def test_a_killed_torchrun_takes_its_workers_with_it_and_the_others_go_on(folder: Path, killed: int) -> None:
    with local_step(folder, 3, "2:3", max_restarts=0) as step:
        workers = [one["pid"] for one in step.wait_for(1, 3)]
        step.torchruns[killed].kill()
        began = time.monotonic()
        wait_until(lambda: not is_alive(workers[killed]), "its worker is dead", within_s=10)
        step.wait_for(2, 2, within_s=30)
        assert time.monotonic() - began < 30  # below the last call, and no lease to wait for
        left = [number for number in range(3) if number != killed]
        assert step.nodes(2) == [f"local{number}" for number in left]
        assert step.told(2)[0]["MASTER_ADDR"] == f"127.0.0.{left[0] + 2}"
        step.finish()
        codes = step.exit_codes()
        assert [codes[number] for number in left] == [0, 0]
        step.assert_records_valid(f"local{killed}")
        step.assert_nothing_left()


@pytest.mark.variant(of="test_a_crash_of_one_worker_restarts_all_at_a_fresh_store_and_they_finish")
def test_a_spare_takes_the_place_of_a_lost_node_and_one_that_was_not_needed_exits_0(folder: Path) -> None:
    with local_step(folder, 4, "2") as step:
        step.wait_for(1, 2)
        step.torchruns[0].kill()
        step.wait_for(2, 2, within_s=30)
        spare, stayed = step.nodes(2)
        assert (spare in ("local2", "local3"), stayed) == (True, "local1")  # who stays keeps its place
        step.finish()
        assert step.exit_codes() == [-signal.SIGKILL, 0, 0, 0]
        assert "Traceback" not in step.output(2) + step.output(3)
        step.assert_nothing_left()


@pytest.mark.variant(of="test_a_crash_of_one_worker_restarts_all_at_a_fresh_store_and_they_finish")
def test_a_frozen_torchrun_has_its_workers_killed_and_comes_back_when_it_wakes(folder: Path) -> None:
    with local_step(folder, 3, "2:3") as step:
        worker = step.wait_for(1, 3)[2]["pid"]
        step.torchruns[2].send_signal(signal.SIGSTOP)
        wait_until(lambda: not is_alive(worker), "its worker is dead", within_s=LEASE_S + 10)
        step.wait_for(2, 2, within_s=30)
        step.torchruns[2].send_signal(signal.SIGCONT)
        step.wait_for_growth(3, after=2)
        step.finish()
        assert step.exit_codes() == [0, 0, 0]
        step.assert_nothing_left()


@pytest.mark.variant(of="test_the_last_failure_of_one_node_ends_all_with_its_cause")
def test_the_failure_without_a_restart_left_ends_all_torchruns_with_its_cause(folder: Path) -> None:
    with local_step(folder, 2, "2", max_restarts=0) as step:
        step.wait_for(1, 2)
        step.fail(1, 1)
        assert step.exit_codes(within_s=60) == [1, 1]
        result = step.result()
        assert (result["state"], result["reason"]) == ("FAILED", "restarts_used_up")
        assert result["cause"].startswith("rank 1 on local1 failed with exit code 1")
        assert f"RendezvousClosedError: {result['cause']}" in step.output(0)
        step.assert_records_valid()
        step.assert_nothing_left()


@pytest.mark.variant(of="test_a_crash_of_one_worker_restarts_all_at_a_fresh_store_and_they_finish")
def test_a_run_directory_that_is_moved_is_not_made_again_and_the_run_goes_on_when_it_is_back(folder: Path) -> None:
    with local_step(folder, 2, "2") as step:
        step.wait_for(1, 2)
        root = Path(step.layout.root)
        moved = root.rename(folder / "moved")
        step.fail(1, 1)
        wait_until(
            lambda: "is gone: it was moved or removed; trying again" in step.output(0) + step.output(1),
            "an agent misses its directory",
            within_s=30,
            otherwise=step.story,
        )
        assert not root.exists()
        moved.rename(root)
        step.wait_for(2, 2)
        step.finish()
        assert step.exit_codes() == [0, 0]
        assert step.result()["attempts"] == 2
        step.assert_nothing_left()


@pytest.mark.variant(of="test_a_crash_of_one_worker_restarts_all_at_a_fresh_store_and_they_finish")
def test_workers_that_cannot_be_started_end_the_run_and_are_its_cause(folder: Path) -> None:
    with local_step(folder, 1, "1", command=("--no-python", "no-such-program")) as step:
        assert step.exit_codes() == [1]
        assert step.result()["reason"] == "start_failed"
        cause = "FileNotFoundError: [Errno 2] No such file or directory: 'no-such-program'"
        assert step.result()["cause"] == f"rank 0 on local0 could not be started: {cause}"
        step.assert_records_valid()
        step.assert_nothing_left()


FUNCTION = """
import json, os, pathlib, time
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

def train(what):
    with open("told.jsonl", "a") as file:
        file.write(json.dumps({name: os.environ[name] for name in os.environ}) + "\\n")
    while not pathlib.Path("finish").exists():
        time.sleep(0.05)
    return what, os.environ["RANK"]

if __name__ == "__main__":
    config = LaunchConfig(min_nodes=2, max_nodes=3, nproc_per_node=1, rdzv_backend="hpc-elastic", max_restarts=0,
                          rdzv_configs={"lease": "5"})
    print("returned", elastic_launch(config, train)("words"))
"""


@pytest.mark.variant(of="test_a_crash_of_one_worker_restarts_all_at_a_fresh_store_and_they_finish")
def test_a_function_as_torchs_launcher_runs_it_survives_the_loss_of_a_node(folder: Path) -> None:
    (folder / "launch.py").write_text(FUNCTION)
    with local_step(folder, 3, program=(sys.executable, "-W", "ignore", "launch.py")) as step:
        told = step.wait_for(1, 3)
        assert {one["TORCHELASTIC_RUN_ID"] for one in told} == {"torchrun-local-5-5"}
        step.torchruns[1].kill()
        step.wait_for(2, 2)
        step.finish()
        codes = step.exit_codes()
        assert (codes[0], codes[2]) == (0, 0)
        assert "returned {1: ('words', '1')}" in step.output(2)
        assert "Traceback" not in step.output(0) + step.output(2)  # of multiprocessing's helper, which is no worker
        step.assert_nothing_left()


def test_torch_finds_the_backend_and_loads_nothing_of_it_before_it_is_used(folder: Path) -> None:
    code = """
import sys
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
assert "hpc-elastic" in rendezvous_handler_registry._registry, sorted(rendezvous_handler_registry._registry)
print(*sorted(name for name in sys.modules if name.startswith("hpc_elastic")))
"""
    environ = {**os.environ, "PYTHONPATH": str(write_metadata(folder))}
    command = [sys.executable, "-W", "ignore", "-c", code]
    loaded = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.split()
    own = {"hpc_elastic.integrations.torchrun", "hpc_elastic.integrations.torchrun.entry"}
    assert own <= set(loaded) <= {"hpc_elastic", "hpc_elastic.integrations", *own}
