"""Programs that submit functions to the real Slurm, and get their values although nodes are lost."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import submitit

import hpc_elastic
from hpc_elastic.rundir.states import RunState
from tests.integration.conftest import Door
from tests.integration.conftest import Run as Records
from tests.integration.submitit_plugin import declare_plugin
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm


def train(steps: int) -> dict[str, Any]:
    """Trains in step with all ranks; the first attempt waits at its end, to be disturbed."""
    import os
    import signal

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(torch.ones(2, 4) * (dist.get_rank() + 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        print("trained", flush=True)
        signal.pause()
    found = {"rank": dist.get_rank(), "of": dist.get_world_size(), "weight": model.module.weight.detach().clone()}
    dist.destroy_process_group()
    return found


def average(steps: int) -> float:
    """Returns the same on each rank; the last one fails the first time, when the others wait for it."""
    import os
    import signal

    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if os.environ["RANK"] == "3":
            raise RuntimeError("the first time")
        signal.pause()
    return sum(range(steps)) / steps


KEYS: dict[str, Any] = {
    "nodes": 2,
    "workers_per_node": 2,
    "site": "generic-slurm",
    "time": "10m",
    "restart": {"max_restarts": 1},
}


def by_function() -> tuple[hpc_elastic.Run, list[Any]]:
    run = hpc_elastic.submit(average, 3, name="average", **KEYS)
    return run, run.results(120)


def by_job_file(folder: Path) -> tuple[hpc_elastic.Run, list[Any]]:
    source = "".join(inspect.getsource(average))
    (folder / "average.py").write_text(f"{source}\nprint(average(3))\n")
    run = hpc_elastic.submit({"name": "average", "entrypoint": {"script": "average.py"}, **KEYS})
    assert run.result(120).return_values == {}
    return run, [float(run.logs(rank)) for rank in range(4)]


def by_submitit(folder: Path) -> tuple[hpc_elastic.Run, list[Any]]:
    executor = submitit.AutoExecutor(folder=folder / "submitit", cluster="hpcelastic")
    executor.update_parameters(name="average", nodes=2, tasks_per_node=2, timeout_min=10)
    executor.update_parameters(hpcelastic_site="generic-slurm", hpcelastic_restart={"max_restarts": 1})
    job = executor.submit(average, 3)
    results = job.results()
    return hpc_elastic.Run.find(job.job_id), results


# What tells two runs apart whatever they do, what is about the function itself, and whom of the others a stop reached
# before the failure of their peer did.
OF_THE_RUN = {
    *("run", "job_id", "time", "started", "ended", "timestamp", "port", "pids", "pid", "error_file", "return_values"),
    *("function", "scripts", "progress", "failure_signature", "root_cause", "useful_time"),
}


def story_of(run: hpc_elastic.Run) -> dict[str, Any]:
    """The run's records, by their names."""
    found = Records.at(Path(run.run_dir))
    found.assert_records_valid()
    patterns = ("result.json", "budget.json", "allocations/*.json", "attempts/*/*.json", "attempts/*/nodes/*.json")
    files = sorted(path for pattern in patterns for path in found.path.glob(pattern))
    story = {str(path.relative_to(found.path)): without(json.loads(path.read_text())) for path in files}
    for name, record in story.items():
        if name.startswith("attempts/0001/nodes/") and not name.endswith("node2.json"):
            del record["failures"], record["state"], record["reason"]
    failed = story["attempts/0001/nodes/node2.json"]
    failed.update(failures=failed["failures"]["3"]["message"], reason="")  # its frame is another through each door
    return story


def without(record: Any) -> Any:
    if isinstance(record, dict):
        return {key: without(value) for key, value in record.items() if key not in OF_THE_RUN}
    return [without(value) for value in record] if isinstance(record, list) else record


@pytest.mark.variant(of="test_a_job_and_an_array_have_slurms_ids_and_a_result_for_every_task")
def test_a_function_leaves_the_same_records_through_every_door(
    slurm_door: Door, slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_plugin(tmp_path / "plugin", monkeypatch)
    monkeypatch.chdir(slurm_door.folder)
    ways = [by_function(), by_job_file(slurm_door.folder), by_submitit(slurm_door.folder)]
    stories = [story_of(run) for run, _ in ways]
    assert (stories[0]["result.json"]["state"], stories[0]["result.json"]["restarts"]) == ("SUCCEEDED", 1)
    assert stories[0].keys() >= {"attempts/0002/world.json", "attempts/0002/nodes/node2.json"}
    assert stories[0] == stories[1] == stories[2]
    assert [values for _, values in ways] == [[ways[0][1][0]] * 4] * 3


@pytest.mark.variant(of="test_a_job_and_an_array_have_slurms_ids_and_a_result_for_every_task")
def test_a_function_returns_from_every_rank_that_is_left_when_a_node_is_lost(
    slurm_door: Door, slurm: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(slurm_door.folder)
    run = hpc_elastic.submit(train, 3, nodes={"min": 3, "max": 4}, elastic={"lease": "3s"}, time="10m")
    wait_until(lambda: [run.logs(rank) for rank in range(4)] == ["trained\n"] * 4, "all have trained", within_s=90)
    slurm.kill("node3")
    result = run.result(120)
    slurm.boot("node3")
    assert (result.state, result.nodes) == (RunState.SUCCEEDED, ("node1", "node2", "node4"))
    values = run.results()
    assert [(value["rank"], value["of"]) for value in values] == [(0, 3), (1, 3), (2, 3)]
    assert all(value["weight"].equal(values[0]["weight"]) for value in values)
    assert run.status().node_losses == 1
    Records.at(Path(run.run_dir)).assert_records_valid()
