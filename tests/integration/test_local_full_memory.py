"""States in memory that fill the cgroup of the job, with and without a keeper: the training goes on without them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration import greedy_trainer
from tests.integration.conftest import Door, Run
from tests.memory_cgroup import MIB, memory_cgroup
from tests.tiers import variants

pytestmark = [pytest.mark.local, pytest.mark.cgroups]

LINE = "the out-of-memory killer has ended a process of this node while training states took "


def begun(folder: Path) -> list[tuple[int, int, bool]]:
    """The attempt and the first step of each rank that began, and whether it got that from memory."""
    lines = [json.loads(line) for line in (folder / "begun").read_text().splitlines()]
    return sorted({(line["attempt"], line["first"], line["memory"]) for line in lines})


def written(run: Run, name: str) -> str:
    return "".join(path.read_text() for path in run.path.glob(name))


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "replicas", [1, *variants(0, of="test_a_training_that_fits_only_without_states_goes_on_without_them")]
)
def test_a_training_that_fits_only_without_states_goes_on_without_them(replicas: int, door: Door) -> None:
    """The kernel kills a worker once; what it had saved is loaded, given back, and nothing more is saved."""
    door.write(
        "job.yaml",
        f"""
name: greedy
site: local
nodes: 2
workers_per_node: 1
time: 10m
start: spawn
entrypoint: {{script: {greedy_trainer.__file__}, args: [{json.dumps(str(door.folder))}, 2]}}
restart: {{max_restarts: 3}}
state: {{replicas: {replicas}, limit: 60%}}
""",
    )
    with memory_cgroup() as cgroup:
        cgroup.limit_to(800 * MIB)
        door.command = tuple(cgroup.entering(*door.command))
        run = door.submit("job.yaml")
        result = run.wait_until_over()
        run.assert_nothing_left()
        kills = cgroup.kills
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 2), run.story()
    assert 1 <= kills <= 2  # both ranks take memory at once, and the kernel may kill both before the first is gone
    (first, second) = begun(door.folder)
    assert first == (1, 0, False)
    assert second in [(2, greedy_trainer.GREEDY_FROM - back, True) for back in (0, 1)]
    logs = written(run, "agents/*.out")
    assert logs.count(LINE) == 2, logs  # one of each agent: here both are in one cgroup
    events = [json.loads(line) for line in written(run, "nodes/*/events.jsonl").splitlines()]
    closed = [event for event in events if event["name"] == "state.closed"]
    assert sorted(event["metadata"]["node"] for event in closed) == ["local0", "local1"]
    assert {event["attempt"] for event in closed} == {1}
    assert all(event["message"].startswith(LINE) for event in closed)
    for rank in range(2):
        told = written(run, f"attempts/0002/ranks/0000{rank}/stderr.log")
        assert told.count("\n") == 1
        assert told.endswith("training goes on without states in memory\n")
