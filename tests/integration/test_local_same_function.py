"""The same training by each door: `hpc_elastic.submit`, submitit, and a job file whose script calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import submitit

import hpc_elastic
from tests.integration.conftest import Door, Run
from tests.integration.distributed_function import STEPS, train
from tests.integration.submitit_plugin import declare_plugin

pytestmark = pytest.mark.local

JOB = "name: probe\nsite: local\nnodes: 2\nworkers_per_node: 2\nentrypoint: {script: train.py}\n"
SCRIPT = (
    "import json\nimport torch\nfrom tests.integration.distributed_function import train\nprint(json.dumps(train(3)))\n"
)


@pytest.mark.variant(of="test_a_job_and_an_array_have_slurms_ids_and_a_result_for_every_task")
def test_a_training_leaves_the_same_records_by_every_door(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_plugin(tmp_path / "plugin", monkeypatch)
    monkeypatch.chdir(door.folder)
    door.write("job.yaml", JOB)
    door.write("train.py", SCRIPT)
    by_file = door.submit("job.yaml", wait=True)
    printed = [json.loads(by_file.stdout(1, rank).splitlines()[-1]) for rank in range(4)]
    by_function = hpc_elastic.submit(train, 3, site="local", nodes=2, workers_per_node=2)
    executor = submitit.AutoExecutor(door.folder / "logs", cluster="hpcelastic")
    executor.update_parameters(nodes=2, tasks_per_node=2, hpcelastic_site="local")
    by_submitit = executor.submit(train, 3)
    layout = Run.at((door.folder / "logs" / f"{by_submitit.job_id}_run").resolve()).layout
    try:
        records: list[list[dict[str, Any]]] = [printed, by_function.results(120), by_submitit.results()]
    finally:
        for run_dir in (by_function.run_dir, layout.root):
            hpc_elastic.Run(run_dir).cancel()  # fine if it is over
    assert records[0] == records[1] == records[2]
    assert [record["RANK"] for record in printed] == [0, 1, 2, 3]
    assert len({record["parameters"] for record in printed}) == 1
    assert len({tuple(record["losses"]) for record in printed}) == 4
    assert len(printed[0]["losses"]) == STEPS
    for run_dir in (by_file.layout.root, by_function.run_dir, layout.root):
        Run.at(Path(run_dir)).assert_nothing_left()
        Run.at(Path(run_dir)).assert_records_valid()
