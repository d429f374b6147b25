"""`hpc-elastic doctor` on a real Slurm of four nodes: each thing that is broken is found."""

from __future__ import annotations

import contextlib
import glob
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Door
from tests.integration.test_slurm_rendezvous import names_missing
from tests.slurm_sandbox.cluster import Cluster

pytestmark = pytest.mark.slurm

SITE = """
name: here
contact: nobody@example.org
last_checked: never
scheduler: slurm
run_root: {runs}
defaults: {{python: {python}, signals: {{grace: 5s}}}}
network: {{{network}}}
"""
# The nodes' Python: the checks of one node start in an environment of their own, as a profile on it might make it.
PYTHON = """#!/bin/bash
case "$SLURM_NODEID $*" in
"1 "*doctor.node.main*) {on_node2} ;;
"2 "*doctor.node.main*) {on_node3} ;;
esac
exec {python} "$@"
"""
FAKETIME = "/usr/lib/*/faketime/libfaketime.so.1"
PORTS = "20000-32000"


def make_site(door: Door, *, network: str = "", on_node2: str = ":", on_node3: str = ":") -> Path:
    """Make a site file whose run directories are in a folder of the test; return that folder."""
    runs = door.folder / "runs"
    runs.mkdir()
    text = PYTHON.format(python=sys.executable, on_node2=on_node2, on_node3=on_node3)
    python = door.write("python", text)
    python.chmod(0o700)
    door.write("here.yaml", SITE.format(runs=runs, python=python, network=network))
    return runs


def an_hour_ahead() -> str:
    """What makes the realtime clock of a program an hour fast: there is no namespace for that clock."""
    found = glob.glob(FAKETIME)
    if not found:
        pytest.skip("not installed: libfaketime (Debian: faketime)")
    return f"export LD_PRELOAD={found[0]} FAKETIME=+1h DONT_FAKE_MONOTONIC=1"


@contextlib.contextmanager
def broken_cluster(slurm: Cluster, runs: Path, folder: Path) -> Iterator[None]:
    """node2 lets nobody in on the ports, node3 cannot write in the folder, node4's name server says nothing."""
    with (
        slurm.firewall("node2", f"tcp dport {PORTS} drop"),
        slurm.mounted("node3", runs, runs),
        names_missing(slurm, "node4", folder),
    ):
        yield


def examine(door: Door, *options: str, exit_code: int) -> dict[str, Any]:
    done = door.run("doctor", "--site", "./here.yaml", "--json", *options, exit_code=exit_code)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def faults(told: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The checks that failed, by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in told["checks"]:
        if each["verdict"] == "fail":
            found.setdefault(each["check"], []).append(each)
    return found


def test_doctor_finds_nothing_to_mend_on_a_cluster_that_is_well(slurm_door: Door) -> None:
    runs = make_site(slurm_door)
    told = examine(slurm_door, "--nodes", "4", "--write", "./drafted.yaml", exit_code=0)
    assert told["nodes"] == ["node1", "node2", "node3", "node4"]
    # What the sandbox's Slurm is: it has no cgroups.
    warned = {each["check"] for each in told["checks"] if each["verdict"] != "ok"}
    assert warned == {"proctrack", "confinement"}, told
    checks = {each["check"] for each in told["checks"]}
    assert {"names", "ports", "clocks", "shared files", "torch", "all-reduce", "leftovers"} <= checks
    assert list(runs.iterdir()) == []  # what it made is gone
    assert "is fine" in slurm_door.run("sites", "check", "./drafted.yaml").stdout


def test_doctor_finds_everything_that_is_broken_on_a_cluster(slurm_door: Door, slurm: Cluster, tmp_path: Path) -> None:
    """One run finds six things at once, names the node of each, and the key of the site file."""
    runs = make_site(
        slurm_door, network="interface: ib7", on_node2="export PYTHONPATH=/opt/other", on_node3=an_hour_ahead()
    )
    with broken_cluster(slurm, runs, tmp_path):
        told = examine(slurm_door, "--nodes", "4", exit_code=1)
    found = faults(told)

    def only(check: str, *nodes: str) -> dict[str, Any]:
        assert [tuple(each["nodes"]) for each in found[check]] == [nodes], json.dumps(found, indent=1)
        return found[check][0]

    names = only("names", "node4")
    assert re.match(r"node4: cannot resolve node1, .*: no answer of the name server within 4 s", names["found"])
    interface = only("interfaces", *slurm.nodes)
    assert "there is no interface ib7" in interface["found"] and interface["key"] == "network.interface"
    assert "eth0" in interface["action"]
    root = only("run root", "node3")
    assert "Read-only file system" in root["found"] and root["key"] == "run_root"
    python = only("python", "node2")
    assert python["found"] == "node2: PYTHONPATH is /opt/other" and "not set" in python["expected"]
    ports = only("ports", "node2")
    assert "met a blocked port: node2" in ports["found"] and ports["key"] == "network.port_range"
    clock = only("clocks", "node3")
    assert clock["found"].startswith("node3: 60 min ahead"), clock
