"""Several runs on this machine at once do not disturb each other."""

from __future__ import annotations

import subprocess

import pytest

from tests.integration.conftest import Door, Run
from tests.slurm_sandbox.cluster import wait_until

pytestmark = pytest.mark.local

# Meets the other ranks of its own run, and of nobody else's, through the store; ends when the test says so.
MEET = """
import os, pathlib, sys, time
from datetime import timedelta
from torch.distributed import TCPStore
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = TCPStore(address, port, size, False, timeout=timedelta(seconds=120))
run = pathlib.Path(os.environ["HPC_ELASTIC_RUN_DIR"]).name
store.set(f"rank{rank}", run)
met = {store.get(f"rank{other}").decode() for other in range(size)}
print(f"{address}:{port} met", *met, flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


def write_job(door: Door) -> None:
    door.write("meet.py", MEET)
    door.write(
        "job.yaml",
        "name: meet\nsite: local\nnodes: 2\nworkers_per_node: 1\ntime: 10m\nentrypoint: {script: meet.py}\n"
        "env: {OMP_NUM_THREADS: 1}\n",
    )


@pytest.mark.variant(of="test_a_second_start_of_a_run_on_its_nodes_leaves_the_workers_of_the_first_alone")
def test_runs_that_were_started_in_the_same_second_live_side_by_side(door: Door) -> None:
    write_job(door)
    command = [*door.command, "submit", "job.yaml", "--wait"]
    started = [
        subprocess.Popen(
            command, cwd=door.folder, env=door.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    runs = door.folder / "hpc-elastic-runs"
    try:
        outputs = runs.glob
        pattern = "*/attempts/0001/ranks/*/stdout.log"
        wait_until(
            lambda: sum(" met " in path.read_text() for path in outputs(pattern)) == 6,
            "all six ranks have met their own",
            within_s=120,
            otherwise=lambda: [path.read_text() for path in runs.glob("*/agents/*.out")],
        )
        (door.folder / "go").touch()
        for process in started:
            said, complaints = process.communicate(timeout=120)
            assert process.returncode == 0, said + complaints
    finally:
        for process in started:
            process.kill()
    stores = set()
    for path in runs.iterdir():
        run = Run.at(path)
        assert run.result()["state"] == "SUCCEEDED"
        for rank in range(2):
            store, _, met = run.stdout(1, rank).strip().partition(" met ")
            assert met == path.name
            stores.add(store)
        run.assert_nothing_left()
        run.assert_records_valid()
    assert len(stores) == 3
    listed = door.run("list", "--json").stdout
    assert all(path.name in listed for path in runs.iterdir())


@pytest.mark.variant(of="test_a_second_start_of_a_run_on_its_nodes_leaves_the_workers_of_the_first_alone")
def test_the_end_of_one_run_is_not_the_others(door: Door) -> None:
    write_job(door)
    first = door.submit("job.yaml")
    second = door.submit("job.yaml")
    first.wait_for_output(" met ")
    second.wait_for_output(" met ")
    door.run("cancel", first.job_id)
    assert first.wait_until_over()["state"] == "CANCELLED"
    first.assert_nothing_left()
    assert not second.is_over()
    assert second.processes()
    (door.folder / "go").touch()
    assert second.wait_until_over()["state"] == "SUCCEEDED"
    second.assert_nothing_left()
