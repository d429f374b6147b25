from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm_sandbox import configuration, files, versions
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.configuration import Layout
from tests.slurm_sandbox.sandbox import Sandbox

pytestmark = pytest.mark.slurm

OWNER = """
import os, time
from tests.slurm_sandbox.sandbox import Sandbox
print(Sandbox.start(1, owner=os.getpid()).layout.slot, flush=True)
time.sleep(600)
"""


def traces(slot: int) -> list[str]:
    """What there is on this computer of the sandbox in a slot."""
    found = [f"/run/hpc-elastic-slurm/{slot}"] if os.path.exists(f"/run/hpc-elastic-slurm/{slot}") else []
    found += [name for name in os.listdir("/sys/class/net") if name == f"hpce-slurm{slot}"]
    with open("/proc/mounts") as mounts:
        found += [line for line in mounts if f"/run/hpc-elastic-slurm/{slot}/" in line]
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"/run/hpc-elastic-slurm/{slot}/" in command:
            found.append(command)
    return found


def keeper_of(pid: int) -> int:
    """The keeper that a process has started."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        (keeper,) = file.read().split()
    return int(keeper)


def is_taken(slot: int) -> bool:
    """Whether a keeper owns the slot: another test's or session's, if the one that was looked at is dead."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        return connection.connect_ex(Layout(slot=slot).control) == 0


def wait_until_slot_is_free(slot: int) -> None:
    """Waits until nothing is left in a slot, or another sandbox has it, which may come and go between two looks."""
    wait_until(lambda: not traces(slot) or is_taken(slot), "nothing is left", otherwise=lambda: traces(slot))


def wait_until_traceless(slot: int, keeper: int) -> None:
    """Waits until nothing is left of a keeper's sandbox; its slot may be another one's at once."""
    gone = Path("/proc", str(keeper))
    wait_until(
        lambda: not gone.exists() and (not traces(slot) or is_taken(slot)),
        "nothing is left",
        otherwise=lambda: traces(slot),
    )


def outside() -> dict[str, str]:
    """What of this computer a sandbox must not touch."""
    contents = {}
    for path in ("/etc/hosts", "/etc/resolv.conf", "/etc/slurm/slurm.conf"):
        if os.path.exists(path):
            with open(path) as file:
                contents[path] = file.read()
    return contents


def kill_owner(owner: subprocess.Popen[str]) -> None:
    owner.kill()


def kill_keeper_and_owner(owner: subprocess.Popen[str]) -> None:
    os.kill(keeper_of(owner.pid), signal.SIGKILL)
    owner.kill()


@pytest.mark.parametrize("accident", [kill_owner, kill_keeper_and_owner])
def test_leaves_nothing_if_processes_are_killed(
    slurm: Cluster, accident: Callable[[subprocess.Popen[str]], None]
) -> None:
    before = outside()
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        slot = int(owner.stdout.readline())
        keeper = keeper_of(owner.pid)
        assert traces(slot)
        assert outside() == before
        accident(owner)
    if accident is kill_keeper_and_owner:  # then the next one that starts removes the files
        Sandbox.start(1).down()
    wait_until_traceless(slot, keeper)
    assert outside() == before


def test_starts_and_leaves_nothing_if_the_umask_keeps_everybody_else_out(slurm: Cluster) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, umask=0o077) as owner:
        assert owner.stdout
        slot = int(owner.stdout.readline())
        keeper = keeper_of(owner.pid)
        owner.kill()
    wait_until_traceless(slot, keeper)


def test_starts_if_the_computer_has_cgroups_of_version_2_only(slurm: Cluster) -> None:
    hide = 'umount --recursive --lazy /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", hide, "sh", sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        slot = int(owner.stdout.readline())
        keeper = keeper_of(owner.pid)
        owner.kill()
    wait_until_traceless(slot, keeper)


@pytest.mark.variant(of="test_runs_a_slurm_of_another_release_beside_the_first")
def test_runs_side_by_side_with_another(slurm: Cluster) -> None:
    other = Cluster.start(2, owner=os.getpid())
    try:
        assert other.layout.slot != slurm.layout.slot
        assert sorted(other.run("srun", "-N2", "hostname").stdout.split()) == ["node1", "node2"]
        assert sorted(slurm.run("srun", "-N4", "hostname").stdout.split()) == list(slurm.nodes)
        assert "--- slurmctld\n" in other.report()
    finally:
        other.down()
    wait_until_slot_is_free(other.layout.slot)
    assert other.report() == "it is down, and its logs are gone", "a test that fails last is reported nevertheless"


@pytest.mark.parametrize(
    "version",
    [
        "22.05",
        "24.11",
        pytest.param("26.05", marks=pytest.mark.variant(of="test_runs_a_slurm_of_another_release_beside_the_first")),
    ],
)
def test_runs_a_slurm_of_another_release_beside_the_first(
    slurm: Cluster, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := versions.why_impossible(version):
        pytest.skip(reason)
    monkeypatch.setenv(versions.CACHE_VARIABLE, str(tmp_path))  # as others clear it, after the folder was chosen
    script = "srun --version; srun sh -c 'srun --version; scontrol show config | grep ^SLURM_VERSION; hostname'"
    with contextlib.ExitStack() as stack:
        other = Cluster.start(2, owner=os.getpid(), version=version)
        stack.callback(other.down)
        assert other.version == version
        assert [known.version for known in Sandbox.running() if known.layout.slot == other.layout.slot] == [version]
        other.run("sbatch", "--wait", "--nodes=2", f"--output={tmp_path}/out", f"--wrap={script}")
        shown = (tmp_path / "out").read_text()
        told = re.findall(r"^slurm-wlm (\S+)$", shown, re.MULTILINE)
        told += re.findall(r"^SLURM_VERSION += (\S+)$", shown, re.MULTILINE)
        assert len(told) == 5, shown  # the batch script; on each node the client, and the controller's word
        assert {text.rpartition(".")[0] for text in told} == {version}
        assert set(other.nodes) <= set(shown.split())
        assert slurm.run("srun", "--version").stdout.split()[1].startswith(slurm.version)
    wait_until_slot_is_free(other.layout.slot)


def test_a_slurm_that_the_mirror_does_not_serve_is_a_reason(tmp_path: Path) -> None:
    """Of a version that is not this machine's own; nothing half-made is left."""
    fake = tmp_path / "bin" / "apt-get"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'E: no such suite' >&2\nexit 100\n")
    fake.chmod(0o755)
    version = next(version for version in versions.SUPPORTED if version != versions.own())
    done = subprocess.run(
        [sys.executable, "-m", "tests.slurm_sandbox", "prepare", version],
        env={
            **os.environ,
            "PATH": f"{fake.parent}:{os.environ['PATH']}",
            "HPC_ELASTIC_SLURM_CACHE": f"{tmp_path}/cache",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "E: no such suite" in done.stderr
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"] == []


def test_runs_srun_of_the_login_node_in_an_salloc(slurm: Cluster) -> None:
    shown = slurm.run("salloc", "--quiet", "-N2", "srun", "hostname").stdout
    assert sorted(shown.split()) == ["node1", "node2"]


def test_nodes_know_each_other_by_name_and_get_no_answer_of_dns_at_once(slurm: Cluster) -> None:
    assert "10.78." in slurm.run_on("node1", "getent", "hosts", "node3")
    assert slurm.run_on("node1", "getent", "hosts", "no.such.host.example", check=False, timeout_s=5) == ""


def test_gives_gpus_by_number(slurm: Cluster) -> None:
    shown = slurm.run("srun", "-N2", "--gpus-per-node=2", "printenv", "CUDA_VISIBLE_DEVICES").stdout
    assert shown.split() == ["0,1", "0,1"]


@pytest.mark.variant(of="test_a_requeued_job_goes_on_in_the_next_allocation")
def test_starts_a_requeued_job_again(slurm: Cluster) -> None:
    job_id = slurm.submit("--output=/dev/null", "--wrap=sleep 600")
    slurm.wait_for_job(job_id, "RUNNING")
    slurm.run("scontrol", "requeue", job_id)
    wait_until(lambda: slurm.job(job_id)["Restarts"] == "1" and slurm.job(job_id)["JobState"] == "RUNNING", "again")
    slurm.run("scancel", job_id)


def test_ends_all_processes_of_a_node_if_it_is_switched_off(slurm: Cluster) -> None:
    job_id = slurm.submit("-w", "node2", "--output=/dev/null", "--wrap=setsid sleep 600 & exec sleep 600")
    wait_until(lambda: list(slurm.processes("node2").values()).count("sleep 600") == 2, "it runs")
    processes = slurm.processes("node2")
    slurm.kill("node2")
    assert not [pid for pid in processes if os.path.exists(f"/proc/{pid}")]
    slurm.run("scancel", job_id)
    slurm.boot("node2")


def test_reaches_a_node_again_if_its_cable_is_plugged_in(slurm: Cluster) -> None:
    def connects() -> bool:
        connect = f"exec 3<>/dev/tcp/{slurm.layout.address('node2')}/6818"
        return (
            slurm.run(*slurm.command_on("node1", ["timeout", "1", "bash", "-c", connect]), check=False).returncode == 0
        )

    assert connects()
    slurm.cut("node2")
    assert not connects()
    slurm.heal("node2")
    wait_until(connects, "the node can be reached")


@pytest.mark.variant(of="test_reaches_a_node_again_if_its_cable_is_plugged_in")
def test_a_node_that_was_set_down_is_back_at_once_for_the_next_test(slurm: Cluster) -> None:
    job_id = slurm.submit("--no-requeue", "--nodes=2", "--output=/dev/null", "--wrap=srun sleep 600")
    slurm.wait_for_job(job_id, "RUNNING")
    slurm.cut("node2")
    wait_until(lambda: slurm.node_states()["node2"] == "down*", "it is set down", within_s=120)
    begin = time.monotonic()
    assert slurm.leftovers(within_s=15) == []
    assert time.monotonic() - begin < 15


@pytest.mark.variant(of="test_reaches_a_node_again_if_its_cable_is_plugged_in")
def test_a_controller_that_hangs_as_it_reads_its_configuration_is_started_again(slurm: Cluster) -> None:
    with slurm.frozen_slurmctld():
        slurm.reconfigure()
        slurm.wait_until_idle()


def test_shows_the_processes_of_a_node(slurm: Cluster) -> None:
    job_id = slurm.submit("-w", "node3", "--output=/dev/null", "--wrap=exec sleep 123")
    wait_until(lambda: "sleep 123" in slurm.processes("node3").values(), "it runs")
    assert "sleep 123" not in slurm.processes("node1").values()
    slurm.run("scancel", job_id)


def test_makes_its_folder_while_others_remove_the_one_above(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Several that start together: each removes what dead ones have left, and the folder of all if it is empty."""
    monkeypatch.setattr(configuration, "ROOT", str(tmp_path / "all"))
    is_over = threading.Event()

    def remove() -> None:
        while not is_over.is_set():
            files.remove_files(Layout(slot=1))

    others = threading.Thread(target=remove)
    others.start()
    try:
        for _ in range(200):
            files.write_files(Layout(slot=0))
            shutil.rmtree(Layout(slot=0).root)
    finally:
        is_over.set()
        others.join()
