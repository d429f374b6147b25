"""`hpc-elastic doctor` on a real Slurm of four nodes: each thing that is broken is found."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Door
from tests.integration.test_slurm_rendezvous import names_missing, python_missing
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.remote_folder import RemoteFolder, why_no_remote_folder

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
    python = Path(sys.executable)
    if (on_node2, on_node3) != (":", ":"):
        python = door.write("python", PYTHON.format(python=python, on_node2=on_node2, on_node3=on_node3))
        python.chmod(0o700)
    door.write("here.yaml", SITE.format(runs=runs, python=python, network=network))
    return runs


def an_hour_ahead() -> str:
    """What makes the realtime clock of a program an hour fast: there is no namespace for that clock. `:` without it."""
    found = glob.glob(FAKETIME)
    return f"export LD_PRELOAD={found[0]} FAKETIME=+1h DONT_FAKE_MONOTONIC=1" if found else ":"


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


@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
def test_doctor_finds_nothing_to_mend_on_a_cluster_that_is_well(slurm_door: Door) -> None:
    runs = make_site(slurm_door)
    told = examine(slurm_door, "--nodes", "4", "--write", "./drafted.yaml", exit_code=0)
    assert told["nodes"] == ["node1", "node2", "node3", "node4"]
    assert faults(told) == {}
    # What the sandbox's Slurm is: it has no cgroups. On a machine with other work something may be slow.
    warned = {each["check"] for each in told["checks"] if each["verdict"] == "warn"}
    assert warned >= {"proctrack", "confinement"}, told
    checks = {each["check"] for each in told["checks"] if each["verdict"] != "skip"}
    assert {"names", "ports", "clocks", "shared files", "torch", "all-reduce", "leftovers"} <= checks
    assert list(runs.iterdir()) == []  # what it made is gone
    assert "is fine" in slurm_door.run("sites", "check", "./drafted.yaml").stdout


def test_doctor_finds_everything_that_is_broken_on_a_cluster(slurm_door: Door, slurm: Cluster, tmp_path: Path) -> None:
    """One run finds six things at once, names the node of each, and the key of the site file."""
    slurm_door.environ.pop("PYTHONPATH", None)  # whoever tests may have one
    runs = make_site(
        slurm_door, network="interface: ib7", on_node2="export PYTHONPATH=/opt/other", on_node3=an_hour_ahead()
    )
    with broken_cluster(slurm, runs, tmp_path):
        told = examine(slurm_door, "--nodes", "4", exit_code=1)
    found = faults(told)
    broken = {"names", "interfaces", "run root", "python", "ports", "all-reduce"}
    assert found.keys() - {"clocks"} == broken, told

    def only(check: str, *nodes: str, key: str = "") -> dict[str, Any]:
        assert [(tuple(each["nodes"]), each["key"]) for each in found[check]] == [(nodes, key)], found[check]
        return found[check][0]

    names = only("names", "node4", key="network.hostname_transform")
    assert re.match(r"node4: cannot resolve node1, .*: no answer of the name server within 4 s", names["found"])
    interface = only("interfaces", *slurm.nodes, key="network.interface")
    assert "there is no interface ib7" in interface["found"]
    assert interface["action"] == "name another: eth0"
    root = only("run root", "node3", key="run_root")
    assert root["found"] == f"node3: write in {runs}: Read-only file system"
    python = only("python", "node2", key="defaults.setup")
    assert (python["found"], python["expected"]) == (
        "node2: PYTHONPATH is /opt/other",
        "as on node1, node3, node4: not set",
    )
    ports = only("ports", "node2", key="network.port_range")
    assert ports["found"].startswith("node1, node3, node4 met a blocked port: node2 (")
    if an_hour_ahead() == ":":
        pytest.skip("all is found but the clock, which is right: libfaketime is not installed (Debian: faketime)")
    clock = only("clocks", "node3")
    assert clock["found"].startswith("node3: 60 min ahead of the others'"), clock


@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
@pytest.mark.parametrize("node", ["node1", "node3"])
def test_doctor_names_a_node_whose_folder_hangs(slurm_door: Door, slurm: Cluster, node: str) -> None:
    """Also the node of the batch script, from which then nothing comes."""
    if reason := why_no_remote_folder():
        pytest.skip(reason)
    runs = make_site(slurm_door)
    with RemoteFolder.mounted(slurm, runs, [node]) as folder, folder.stalled(node):
        told = examine(slurm_door, "--nodes", "3", exit_code=1)
    found = faults(told)
    if node == "node3":
        assert any("no answer within" in each["found"] and "node3" in each["nodes"] for each in found["run root"]), told
    else:
        (job,) = found["job"]
        assert re.search(r"wrote nothing to|nothing that it wrote", job["found"]), told
        assert job["key"] == "run_root"


@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
def test_doctor_says_so_if_the_first_node_cannot_write_the_jobs_output(slurm_door: Door, slurm: Cluster) -> None:
    runs = make_site(slurm_door)
    with slurm.mounted("node1", runs, runs):
        told = examine(slurm_door, "--nodes", "2", exit_code=1)
    (job,) = faults(told)["job"]
    assert f"nothing that it wrote has come to {runs}" in job["found"]
    assert (job["key"], job["nodes"]) == ("run_root", ["node1", "node2"])


def running_doctor(door: Door, *options: str) -> subprocess.Popen[str]:
    return door.start("doctor", "--site", "./here.yaml", "--nodes", "2", *options)


@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
@pytest.mark.parametrize(
    ("setting", "found", "action"),
    [
        ("begin=now+1hour", "it did not start within 4 s (BeginTime)", "--wait"),
        ("hold=true", "it does not start by itself: the job is held (JobHeldUser)", "leave out `hold`"),
    ],
    ids=["begins later", "held"],
)
def test_doctor_says_what_a_pending_job_waits_for_and_gives_up(
    slurm_door: Door, slurm: Cluster, setting: str, found: str, action: str
) -> None:
    make_site(slurm_door)
    told = examine(slurm_door, "--set", f"sbatch.{setting}", "--wait", "4s", exit_code=1)
    (job,) = faults(told)["job"]
    assert re.sub(r"job \d+: ", "", job["found"]) == found
    assert action in job["action"]
    assert slurm.job_ids() == []


@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_doctor_cancels_its_job_if_it_is_interrupted(slurm_door: Door, slurm: Cluster, number: signal.Signals) -> None:
    runs = make_site(slurm_door)
    doctor = running_doctor(slurm_door, "--set", "sbatch.hold=true")
    wait_until(lambda: slurm.job_ids(), "the job waits")
    doctor.send_signal(number)
    assert doctor.wait(30) == 130
    wait_until(lambda: not slurm.job_ids(), "the job is gone")
    assert list(runs.iterdir()) == []


@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
def test_doctor_ends_a_job_that_runs_if_it_is_interrupted(slurm_door: Door, slurm: Cluster) -> None:
    make_site(slurm_door, on_node2="exec sleep 600")
    doctor = running_doctor(slurm_door)
    wait_until(lambda: any("sleep 600" in line for line in slurm.processes("node2").values()), "node2 is at it")
    doctor.send_signal(signal.SIGINT)
    assert doctor.wait(30) == 130
    wait_until(lambda: not slurm.job_ids(), "the job is gone")


@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
def test_doctor_uses_the_allocation_that_it_is_in(slurm_door: Door, slurm: Cluster) -> None:
    make_site(slurm_door)
    command = ["salloc", "--nodes=3", *slurm_door.command, "doctor", "--site", "./here.yaml", "--json"]
    done = slurm.run(*command, environment=slurm_door.environ, cwd=slurm_door.folder, timeout_s=120)
    told = json.loads(done.stdout)
    assert told["nodes"] == ["node1", "node2", "node3"]
    assert told["verdict"] == "warn", told
    assert slurm.job_ids() == []


@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
def test_doctor_names_the_interface_that_cannot_reach_the_others(slurm_door: Door, slurm: Cluster) -> None:
    """The interface is there and up; its network is an island on each node."""
    make_site(slurm_door, network="interface: ib0")
    with contextlib.ExitStack() as islands:
        for node in ("node1", "node2"):
            islands.callback(slurm.run_on, node, "ip", "link", "del", "ib0", check=False)
            slurm.run_on(node, "ip", "link", "add", "ib0", "type", "veth", "peer", "name", "ib0-peer")
            slurm.run_on(node, "ip", "addr", "add", f"10.79.{node[-1]}.1/24", "dev", "ib0")
            for end in ("ib0", "ib0-peer"):
                slurm.run_on(node, "ip", "link", "set", end, "up")
        told = examine(slurm_door, "--nodes", "2", exit_code=1)
    ports = faults(told)["ports"]
    assert {tuple(each["nodes"]) for each in ports} == {("node1",), ("node2",)}, told
    assert all(each["key"] == "network.interface" for each in ports), told


@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
def test_doctor_knows_a_port_that_a_firewall_rejects(slurm_door: Door, slurm: Cluster) -> None:
    """As if nobody listened, and as firewalld does."""
    make_site(slurm_door)
    with (
        slurm.firewall("node2", f"tcp dport {PORTS} reject with tcp reset"),
        slurm.firewall("node3", f"tcp dport {PORTS} reject with icmp type admin-prohibited"),
    ):
        told = examine(slurm_door, "--nodes", "3", exit_code=1)
    ports = {tuple(each["nodes"]): each for each in faults(told)["ports"]}
    assert ports.keys() == {("node2",), ("node3",)}, told
    assert all(each["key"] == "network.port_range" for each in ports.values()), told
    assert "refused, although node2 listens there" in ports["node2",]["found"]


@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
def test_doctor_tells_a_node_whose_python_is_missing(slurm_door: Door, slurm: Cluster, tmp_path: Path) -> None:
    make_site(slurm_door)
    with python_missing(slurm, "node2", tmp_path):
        told = examine(slurm_door, "--nodes", "2", exit_code=1)
    (job,) = faults(told)["job"]
    assert job["nodes"] == ["node2"]
    assert "node2 gave no answer" in job["found"]


@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
def test_doctor_leaves_the_allocation_that_it_is_in_without_its_step(slurm_door: Door, slurm: Cluster) -> None:
    """At a TERM; the allocation itself is the user's."""
    make_site(slurm_door, on_node2="exec sleep 600")
    script = slurm_door.write(
        "inside.sh",
        f"{' '.join(slurm_door.command)} doctor --site ./here.yaml & echo $! >doctor.pid; wait $!; echo $?\n",
    )
    salloc = slurm_door.start_program("salloc", "--nodes=2", "bash", str(script))

    def is_at_it() -> bool:
        return any("sleep 600" in line for line in slurm.processes("node2").values())

    wait_until(is_at_it, "node2 is at it")
    os.kill(int((slurm_door.folder / "doctor.pid").read_text()), signal.SIGTERM)  # bash lets its children ignore INT
    output, errors = salloc.communicate(timeout=60)
    assert output.split() == ["130"], errors
    wait_until(lambda: not is_at_it() and not slurm.job_ids(), "step and allocation are gone")


@pytest.mark.variant(of="test_doctor_finds_everything_that_is_broken_on_a_cluster")
def test_doctor_starts_no_job_while_the_controller_hangs(slurm_door: Door, slurm: Cluster) -> None:
    make_site(slurm_door)
    with slurm.frozen_slurmctld():
        told = examine(slurm_door, exit_code=1)
    (failed,) = faults(told)["slurm"]
    assert "did not answer within 10 s" in failed["found"]
    assert [each["found"] for each in told["checks"] if each["check"] == "job"] == [
        "no job was started: Slurm does not answer"
    ]
