"""Programs that submit to this machine, wait for their runs and read them."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hpc_elastic
from hpc_elastic.api.submit import prepare, submit_prepared
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.rundir.function_file import dump_function, read_function
from hpc_elastic.rundir.states import RunState
from tests.integration.conftest import Door
from tests.integration.conftest import Run as Records
from tests.slurm_sandbox.cluster import wait_until
from tests.tiers import variants
from tests.without_torch import hide_compiler, hide_torch

pytestmark = pytest.mark.local


@pytest.fixture(autouse=True)
def here(door: Door, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of these programs, whose runs find no torch."""
    monkeypatch.chdir(door.folder)
    door.environ = hide_torch(door.environ, door.folder.parent / "without-torch")
    monkeypatch.setenv("PYTHONPATH", door.environ["PYTHONPATH"])
    return door.folder


def records(run: hpc_elastic.Run) -> Records:
    found = Records.at(Path(run.run_dir))
    found.assert_records_valid()
    return found


@pytest.mark.parametrize(
    "start",
    ["fork", *variants("spawn", of="test_a_function_trains_with_torch_through_a_crash_and_its_values_come_back")],
)
def test_a_function_trains_with_torch_through_a_crash_and_its_values_come_back(
    start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", hide_compiler({})["PYTHONPATH"])  # instead of what hides torch

    def train(scale: float, steps: int) -> dict[str, Any]:
        import os

        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
            raise RuntimeError("the first time")
        total = torch.tensor([dist.get_rank() * scale])
        for _ in range(steps):
            dist.all_reduce(total)
        dist.destroy_process_group()
        return {"rank": int(os.environ["RANK"]), "total": total}

    run = hpc_elastic.submit(train, 0.5, 1, nodes=2, workers_per_node=2, site="local", start=start)
    result = run.result(120)
    assert (result.state, result.restarts, result.attempts, result.failures) == (RunState.SUCCEEDED, 1, 2, {})
    assert [value["rank"] for value in run.results()] == [0, 1, 2, 3]
    assert [value["total"].item() for value in run.results()] == [3.0] * 4
    found = records(run)
    of_a_node = found.read(found.layout.node_result(2, "local1"))
    assert of_a_node["return_values"]["3"] == "attempts/0002/ranks/00003/return_value.pkl"


def test_a_failure_raises_with_the_cause_and_the_traceback_of_the_rank_that_failed_first() -> None:
    def fails(text: str) -> None:
        raise ValueError(text)

    run = hpc_elastic.submit(fails, "no such data", site="local", restart={"max_restarts": 0})
    with pytest.raises(hpc_elastic.RunFailed) as caught:
        run.results(60)
    error = caught.value
    assert str(error).startswith("fails FAILED: rank 0 on local0 failed with exit code 1: ValueError: no such data\n")
    assert "rank 0 on local0, attempt 1:\nTraceback (most recent call last)" in str(error)
    assert "raise ValueError(text)" in str(error)
    assert (error.result.failures[0].exitcode, int(error.exit_code)) == (1, 1)
    assert error.result.return_values == {}
    records(run)


def test_a_function_for_another_python_ends_the_run_before_a_worker_starts(here: Path) -> None:
    prepared = prepare(lambda: 1, site="local", nodes=2, run_dir=here / "run")
    assert prepared.source.function is not None
    (here / "function.pkl").write_bytes(prepared.source.function)
    header, pickled = read_function(str(here / "function.pkl"))
    elsewhere = dump_function(replace(header, python="3.9.1"), pickled)
    run = submit_prepared(replace(prepared, source=replace(prepared.source, function=elsewhere)))
    with pytest.raises(hpc_elastic.RunFailed) as caught:
        run.result(60)
    assert (int(caught.value.exit_code), caught.value.result.reason) == (3, "setup_failed")
    assert f"was pickled by Python 3.9.1, and the workers' Python is {platform.python_version()}" in str(caught.value)
    assert records(run).attempts() == []


def test_a_function_of_the_users_own_module_runs_from_its_folder(here: Path, door: Door) -> None:
    door.write("mine.py", "import os\n\ndef rank():\n    return int(os.environ['RANK'])\n")
    program = """
import hpc_elastic, mine, sys

if __name__ == "__main__":
    sys.exit(hpc_elastic.submit(mine.rank, workers_per_node=2, site="local").results(60) != [0, 1])
"""
    path = door.write("program.py", program)
    door.command = (door.command[0],)
    (here / "elsewhere").mkdir()
    door.folder = here / "elsewhere"
    door.run(str(path))


def test_runs_can_be_awaited_together() -> None:
    def double(number: int) -> int:
        return 2 * number

    async def both() -> list[Any]:
        runs = [hpc_elastic.submit(double, number, site="local", start="spawn") for number in (1, 2)]
        return [result.return_values[0] for result in await asyncio.gather(*runs)]

    assert asyncio.run(both()) == [2, 4]


def test_a_run_tells_its_events_until_it_is_over_and_its_logs() -> None:
    def talk() -> None:
        print("I am here")

    run = hpc_elastic.submit(talk, site="local", start="spawn")
    names = [event.name for event in run.events()]
    assert names[0] == "node.joined"
    assert names.index("attempt.opened") < names.index("workers.started") < len(names) - 1
    assert run.status().state is RunState.SUCCEEDED
    assert (run.logs(), run.logs(stream="stderr"), run.logs(rank=7)) == ("I am here\n", "", "")


def test_a_run_is_cancelled_with_its_grace_and_found_again(here: Path) -> None:
    def sleeps() -> None:
        import signal

        print("asleep", flush=True)
        signal.pause()

    run = hpc_elastic.submit(sleeps, site="local", start="spawn", name="sleeper")
    assert hpc_elastic.Run.find("sleeper") == hpc_elastic.Run.find(run.job_id) == hpc_elastic.Run(run.run_dir) == run
    wait_until(lambda: run.logs() == "asleep\n", "the function sleeps", within_s=60)
    with pytest.raises(TimeoutError, match=r"sleeper is RUNNING after 0\.1 s"):
        run.wait(0.1)
    snapshot: Snapshot = run.cancel()
    assert (snapshot.state, snapshot.exit_code) == (RunState.CANCELLED, 10)
    assert run.cancel().state is RunState.CANCELLED  # once more does nothing
    with pytest.raises(hpc_elastic.RunFailed, match="sleeper CANCELLED"):
        run.result()
    records(run)


def test_values_survive_the_death_of_the_head(here: Path) -> None:
    """The first head dies when all ranks but its own are done: whoever writes the result knows the values."""

    def value() -> int:
        import os
        import pathlib
        import time

        rank = int(os.environ["RANK"])
        while rank == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            pathlib.Path("waiting").touch()
            time.sleep(0.05)
        return rank

    run = hpc_elastic.submit(
        value, nodes={"min": 1, "max": 2}, site="local", start="spawn", elastic={"lease": "5s"}, name="heads"
    )
    wait_until(lambda: (here / "waiting").exists(), "rank 0 waits", within_s=60)
    found = Records.at(Path(run.run_dir))
    head = found.read(found.layout.world(1))["head"]
    os.kill(found.agent_pid(head), signal.SIGKILL)
    assert run.result(120).return_values == {0: 0}
    assert run.result().nodes == ("local1",)
