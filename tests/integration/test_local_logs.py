"""The output of real runs on this machine: its times, and the lines that the agents add."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Door

pytestmark = pytest.mark.local

SCRIPT = """
import os, time
rank = int(os.environ["RANK"])
print("loading", flush=True)
time.sleep(1.5 * rank)  # what is tested is the order of times that are more than a second apart
print("rank", rank, "is ready", flush=True)
raise SystemExit(rank == 3)
"""


@pytest.mark.variant(of="test_all_ranks_are_merged_by_time")
def test_ranks_of_two_nodes_are_merged_by_the_time_of_their_lines(door: Door) -> None:
    door.write("train.py", SCRIPT)
    door.write(
        "job.yaml",
        "name: t\nsite: local\nnodes: 2\nworkers_per_node: 2\nlog_level: debug\nrestart: {max_restarts: 0}\n"
        "entrypoint: {script: train.py}\n",
    )
    run = door.submit("job.yaml")
    run.wait_until_over()
    merged = door.run("logs", "--rank", "all", str(run.path)).stdout.splitlines()
    ready = [line for line in merged if "ready" in line]
    assert ready == [f"[local{rank // 2}:{rank}] rank {rank} is ready" for rank in range(4)], run.story()
    once = door.run("logs", "--dedupe", "--stdout", str(run.path)).stdout.splitlines()
    assert once == ["[ranks 0-3] loading", *ready]
    assert door.run("logs", "--failed", str(run.path)).stdout == "loading\nrank 3 is ready\n"
    for number in range(2):
        said = Path(run.layout.agent_output(f"local{number}")).read_text()
        assert f"group_rank={number} group_world_size=2 local_ranks=0-1" in said
    run.assert_records_valid()
