"""Real runs in which one node is unhealthy: it is named, with its reason, and no worker runs on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration import hung_disk
from tests.integration.conftest import Door, Run
from tests.tiers import variants

MAY_MOUNT = os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(not MAY_MOUNT, reason="needs root, to mount file systems for one node"),
]

JOB = """
nodes: {nodes}
workers_per_node: 1
python: ./python
elastic: {{join_timeout: 60s}}
health: {health}
entrypoint: {{script: train.py}}
"""
SCRIPT = """
import os
print("on", os.environ["HPC_ELASTIC_NODE"], flush=True)
"""
# An agent of one of these nodes starts in surroundings of its own.
PYTHON = """#!/bin/bash
case "$HPC_ELASTIC_LOCAL_NODE_ID $*" in
[{nodes}]" "*hpc_elastic.agent.main*) exec {surroundings} {python} "$@" ;;
*) exec {python} "$@" ;;
esac
"""
FULL = """#!/bin/bash
# Fills local scratch, which only this node sees.
mount -t tmpfs -o size=1m full "$1" && head -c 2000000 /dev/zero > "$1/filled" 2>/dev/null
export TMPDIR=$1
shift
exec "$@"
"""
READ_ONLY = """#!/bin/bash
# Makes the run directory read-only, for this node alone; its agent's own output is open already.
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"
shift
exec "$@"
"""


# Runs a Python program whose clock is an hour behind: `shifted.py PYTHON OPTIONS PROGRAM...`. The kernel has one clock
# for all processes of a machine, so this is what a node with a wrong one is here.
SHIFTED = """
import os, runpy, sys, time
program = next(number for number, word in enumerate(sys.argv[2:], 2) if not word.startswith("-"))
time_ns, seconds = time.time_ns, time.time
time.time_ns, time.time = lambda: time_ns() - 3600 * 10**9, lambda: seconds() - 3600
sys.argv = sys.argv[program:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start(
    door: Door, surroundings: str, *, on: str, nodes: str = "{min: 2, max: 3}", health: str = "{}", exit_code: int = 0
) -> Run:
    """Runs a job to its end, with the agents of some nodes in other surroundings; `on` has their ids, as `02`."""
    door.write("python", PYTHON.format(nodes=on, surroundings=surroundings, python=sys.executable)).chmod(0o700)
    door.write("train.py", SCRIPT)
    door.write("job.yaml", JOB.format(nodes=nodes, health=health))
    run_dir = str(door.folder / "run")
    return door.submit("job.yaml", "--site", "local", "--run-dir", run_dir, wait=True, exit_code=exit_code)


def in_namespace(door: Door, script: str, directory: Path) -> str:
    directory.mkdir(exist_ok=True)
    door.write("surroundings", script).chmod(0o700)
    return f"unshare -m {door.folder}/surroundings {directory}"


def events(run: Run, name: str) -> list[Any]:
    lines = [line for path in run.path.glob("nodes/*/events.jsonl") for line in path.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event["name"] == name]


def assert_left_out(door: Door, run: Run, node: str, *words: str, world: tuple[str, ...]) -> None:
    """The run has succeeded on the other nodes, and says of this one what is wrong with it."""
    result = run.result()
    assert (result["state"], result["exit_code"], tuple(result["nodes"])) == ("SUCCEEDED", 0, world), run.story()
    (event,) = events(run, "node.unhealthy")
    assert event["metadata"]["node"] == node
    for word in words:
        assert word in event["metadata"]["reason"], event
    assert not list(run.path.glob(".health*"))
    run.assert_records_valid()


@pytest.mark.variant(of="test_a_node_with_a_hung_disk_is_named_and_left_out_and_its_agent_ends")
@pytest.mark.parametrize(
    "node",
    [
        pytest.param(2, id="member"),
        *variants(0, of="test_a_node_with_a_hung_disk_is_named_and_left_out_and_its_agent_ends", ids=["head"]),
    ],
)
def test_a_node_with_a_full_scratch_is_named_and_left_out(door: Door, node: int) -> None:
    surroundings = in_namespace(door, FULL, door.folder / "scratch")
    run = start(door, surroundings, on=str(node))
    others = tuple(f"local{number}" for number in range(3) if number != node)
    assert_left_out(door, run, f"local{node}", "scratch: ", str(door.folder / "scratch"), "0 MiB free", world=others)
    log = Path(run.layout.agent_output("local0")).read_text()
    assert f"local{node} is unhealthy: scratch: " in log


@pytest.mark.variant(of="test_a_node_with_a_hung_disk_is_named_and_left_out_and_its_agent_ends")
def test_a_node_whose_run_directory_is_read_only_is_named_and_left_out(door: Door) -> None:
    surroundings = in_namespace(door, READ_ONLY, door.folder / "run")
    run = start(door, surroundings, on="2")
    assert_left_out(door, run, "local2", "run_directory: ", "Read-only file system", world=("local0", "local1"))


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")
@pytest.mark.parametrize(
    "node",
    [
        pytest.param(0, id="head"),
        *variants(2, of="test_a_node_with_a_hung_disk_is_named_and_left_out_and_its_agent_ends", ids=["member"]),
    ],
)
def test_a_node_with_a_hung_disk_is_named_and_left_out_and_its_agent_ends(door: Door, node: int) -> None:
    directory = door.folder / "scratch"
    directory.mkdir()
    server = shutil.copy(hung_disk.__file__, door.folder / "hung_disk.py")
    run = start(door, f"{sys.executable} {server} {directory}", on=str(node), health="{scratch: 8s}")
    others = tuple(f"local{number}" for number in range(3) if number != node)
    assert_left_out(door, run, f"local{node}", "scratch: no answer within 8 s", world=others)


def test_a_run_with_too_few_healthy_nodes_ends_with_code_6_and_names_them(door: Door) -> None:
    surroundings = in_namespace(door, FULL, door.folder / "scratch")
    run = start(door, surroundings, on="02", exit_code=6)
    result = run.result()
    assert (result["state"], result["exit_code"], result["reason"]) == ("FAILED", 6, "nodes_missing"), run.story()
    why = f"is unhealthy: scratch: TMPDIR: {door.folder / 'scratch'} has 0 MiB free, expected at least 16 MiB"
    missing = f"local0, local2 (unhealthy); local0 {why}; local2 {why}"
    assert result["cause"] == f"at most 1 of at least 2 nodes can take part; missing: {missing}"
    for verb in ("status", "explain"):
        assert f"local2 {why}" in " ".join(door.run(verb, str(run.path)).stdout.split()), verb
    log = Path(run.layout.agent_output("local0")).read_text()
    for node in ("local0", "local2"):
        assert f"{node} is unhealthy: scratch: TMPDIR: {door.folder / 'scratch'} has 0 MiB free" in log
    run.assert_records_valid()


def test_a_node_whose_clock_is_an_hour_behind_is_reported_and_takes_part(door: Door) -> None:
    shifted = door.write("shifted.py", SHIFTED)
    run = start(door, f"{sys.executable} {shifted}", on="2")
    assert run.result()["nodes"] == ["local0", "local1", "local2"], run.story()
    (event,) = events(run, "node.clock_differs")
    assert event["metadata"]["node"] == "local2"
    assert round(event["metadata"]["offset_s"] / 60) == -60
    assert "the clock of local2 is 36" in Path(run.layout.agent_output("local0")).read_text()


def test_a_check_that_is_switched_off_finds_nothing(door: Door) -> None:
    surroundings = in_namespace(door, FULL, door.folder / "scratch")
    run = start(door, surroundings, on="2", health="{scratch: false}")
    assert (run.result()["state"], len(run.result()["nodes"])) == ("SUCCEEDED", 3), run.story()
    assert not events(run, "node.unhealthy")
