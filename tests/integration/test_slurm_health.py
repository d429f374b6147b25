"""A node of the real Slurm that is unhealthy is named, with its reason, and no worker runs on it."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.integration import hung_disk
from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import assert_over, events
from tests.integration.test_local_health import FULL, READ_ONLY
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.tiers import variants

pytestmark = pytest.mark.slurm

JOB = """
nodes: {min: 3, max: 4}
workers_per_node: 1
time: 10m
python: ./python
elastic: {join_timeout: 60s}
health: {scratch: 8s}
requeue: {max: 0}
entrypoint: {script: train.py}
"""
SCRIPT = """
import os
print("on", os.environ["HPC_ELASTIC_NODE"], flush=True)
"""
SITE = """
name: with-ib
contact: nobody@example.org
last_checked: 2026-11-23
scheduler: slurm
network: {nccl_socket_ifname: ib0}
"""
# The agent of node 2, which is node3, starts in surroundings of its own.
PYTHON = """#!/bin/bash
case "$SLURM_NODEID $*" in
"2 "*hpc_elastic.agent.main*) exec {surroundings} {python} "$@" ;;
*) exec {python} "$@" ;;
esac
"""


def submit(door: Door, surroundings: str, *options: str) -> Run:
    """Submits a job of four nodes, of which node3 has an agent in these surroundings."""
    door.write("python", PYTHON.format(surroundings=surroundings, python=sys.executable)).chmod(0o700)
    door.write("train.py", SCRIPT)
    door.write("job.yaml", JOB)
    return door.submit("job.yaml", "--run-dir", str(door.folder / "run"), *options)


def in_namespace(door: Door, script: str, directory: Path) -> str:
    directory.mkdir(exist_ok=True)
    door.write("surroundings", script).chmod(0o700)
    return f"unshare -m {door.folder}/surroundings {directory}"


def assert_left_out(door: Door, run: Run, why: str) -> None:
    """The run succeeds without node3, and its job's output, `status` and `explain` can say why."""
    result = assert_over(run, "SUCCEEDED", 0)
    assert result["nodes"] == ["node1", "node2", "node4"], run.story()
    found = [event["metadata"] for event in events(run) if event["name"] == "node.unhealthy"]
    assert [each["node"] for each in found] == ["node3"], run.story()
    assert why in found[0]["reason"]
    assert "node3 is unhealthy: " in door.run("logs", str(run.path), "--node", "node1").stdout


OWN_SYS = """
mkdir -p "$0" && mount -t sysfs own "$0"
for part in class/net devices/virtual/net; do mount --bind "$0/$part" "/sys/$part"; done
"""


def is_up(slurm: Cluster, node: str) -> bool:
    return slurm.run_on(node, "cat", "/sys/class/net/ib0/operstate").strip() == "up"


@contextlib.contextmanager
def interfaces(slurm: Cluster, folder: Path, *nodes: str) -> Iterator[None]:
    """These nodes have an interface ib0, which is up; each node sees its own interfaces in /sys."""
    try:
        for node in slurm.nodes:
            slurm.run_on(node, "bash", "-ec", OWN_SYS, str(folder / f"sys-{node}"))
        for node in nodes:
            slurm.run_on(node, "ip", "link", "add", "ib0", "type", "veth", "peer", "name", "ib0-peer")
            for end in ("ib0", "ib0-peer"):
                slurm.run_on(node, "ip", "link", "set", end, "up")
        for node in nodes:  # the kernel says so later than it does so
            wait_until(partial(is_up, slurm, node), f"ib0 of {node} is up")
        yield
    finally:
        for node in slurm.nodes:
            slurm.run_on(node, "ip", "link", "del", "ib0", check=False)
            for place in ("/sys/class/net", "/sys/devices/virtual/net", str(folder / f"sys-{node}")):
                slurm.run_on(node, "umount", "--lazy", place, check=False)


def full_scratch(door: Door) -> tuple[str, str]:
    directory = door.folder / "scratch"
    return in_namespace(door, FULL, directory), f"scratch: TMPDIR: {directory} has 0 MiB free"


def read_only(door: Door) -> tuple[str, str]:
    return in_namespace(door, READ_ONLY, door.folder / "run"), "Read-only file system"


def hung(door: Door) -> tuple[str, str]:
    directory = door.folder / "scratch"
    directory.mkdir()
    server = shutil.copy(hung_disk.__file__, door.folder / "hung_disk.py")
    return f"{sys.executable} {server} {directory}", "scratch: no answer within 8 s"


@pytest.mark.variant(of="test_a_node_with_a_hung_disk_is_named_and_left_out_and_its_agent_ends")
@pytest.mark.parametrize(
    "surroundings",
    [
        hung,
        *variants(full_scratch, read_only, of="test_a_node_with_a_hung_disk_is_named_and_left_out_and_its_agent_ends"),
    ],
)
def test_a_node_with_a_bad_disk_is_named_and_left_out(slurm_door: Door, slurm: Cluster, surroundings: object) -> None:
    assert callable(surroundings)
    program, why = surroundings(slurm_door)
    assert_left_out(slurm_door, submit(slurm_door, program), why)


def test_a_node_without_the_sites_interface_is_named_and_left_out(slurm_door: Door, slurm: Cluster) -> None:
    site = slurm_door.write("with-ib.yaml", SITE)
    with interfaces(slurm, slurm_door.folder, "node1", "node2", "node4"):
        run = submit(slurm_door, "", "--site", str(site))
        assert_left_out(slurm_door, run, "interface: ")
