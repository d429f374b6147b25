"""Sandboxes of other kinds: with accounting, with cgroups, with settings of one's own."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.slurm_sandbox.accounting import why_no_accounting
from tests.slurm_sandbox.cgroups import why_no_cgroups
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.sandbox import Sandbox
from tests.slurm_sandbox.test_sandbox import is_taken, keeper_of, traces
from tests.slurm_sandbox.versions import why_impossible
from tests.tiers import variants

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("profiles")]

OWNER = """
import os, time
from tests.slurm_sandbox.sandbox import Sandbox
print(Sandbox.start(1, owner=os.getpid(), accounting=True, cgroups=True).layout.slot, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _possible() -> None:
    if reason := why_impossible() or why_no_accounting():
        pytest.skip(reason)


@contextmanager
def started(nodes: int = 1, **kind: object) -> Iterator[Cluster]:
    cluster = Cluster.start(nodes, owner=os.getpid(), **kind)  # type: ignore[arg-type]
    try:
        yield cluster
    finally:
        cluster.down()


def remains(slot: int) -> list[str]:
    """The traces of a sandbox, and its cgroups."""
    return [*traces(slot), *glob.glob(f"/sys/fs/cgroup/*/hpce-slurm{slot}")]


@pytest.mark.cgroups
@pytest.mark.skipif(why_no_cgroups() is not None, reason=str(why_no_cgroups()))
def test_data_base_and_cgroups_are_gone_if_the_keeper_was_killed_and_another_one_starts() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        slot = int(owner.stdout.readline())
        assert any("mariadbd" in trace for trace in remains(slot))
        assert any("cgroup" in trace for trace in remains(slot))
        os.kill(keeper_of(owner.pid), signal.SIGKILL)
        owner.kill()
    Sandbox.start(1).down()
    # What another session, or another process of this one, has in the slot since is its own.
    wait_until(lambda: not remains(slot) or is_taken(slot), "nothing is left", otherwise=lambda: remains(slot))


def test_the_data_base_is_on_no_network() -> None:
    with started(accounting=True) as cluster:
        listening = cluster.run_on("controller", "cat", "/proc/net/tcp", "/proc/net/tcp6")
        assert f":{3306:04X} " not in listening
        assert f":{6819:04X} " in listening  # slurmdbd's


@pytest.mark.variant(of="test_the_data_base_is_on_no_network")
def test_sandboxes_that_start_together_make_a_data_base_each() -> None:
    """MariaDB names temporary tables by its process id, and processes of two machines may have the same one."""
    with ThreadPoolExecutor() as threads:
        clusters = list(threads.map(lambda _: Cluster.start(1, owner=os.getpid(), accounting=True), range(3)))
    for cluster in clusters:
        cluster.down()


SAYS_ITS_SWITCH = """
import os
from hpc_elastic.scheduler.slurm.step import derive_allocation
print(derive_allocation(os.environ).node, derive_allocation(os.environ).switch)
"""


@pytest.mark.parametrize(
    ("version", "plugin", "switches"),
    [
        (None, "topology/tree", ("top.leaf1", "top.leaf2")),
        *variants(
            (None, "", ("", "")),
            ("24.11", "topology/tree", ("top.leaf1", "top.leaf2")),
            ("26.05", "topology/tree", ("top.leaf1", "top.leaf2")),
            of="test_an_agent_knows_its_switch_where_slurm_has_a_topology",
        ),
    ],
)
def test_an_agent_knows_its_switch_where_slurm_has_a_topology(
    version: str | None, plugin: str, switches: tuple[str, str]
) -> None:
    settings = {"TopologyPlugin": plugin} if plugin else {}
    with started(2, version=version, settings=settings) as cluster:
        command = ("srun", "--nodes=2", "--ntasks-per-node=1", sys.executable, "-c", SAYS_ITS_SWITCH)
        said = sorted(line.rstrip() for line in cluster.run(*command).stdout.splitlines())
        assert said == [f"node{number} {switch}".rstrip() for number, switch in enumerate(switches, 1)]


def test_settings_take_the_place_of_the_sandboxs_own() -> None:
    with started(settings={"KillWait": "7", "MinJobAge": "11"}) as cluster:
        shown = " ".join(cluster.run("scontrol", "show", "config").stdout.split())
        assert "KillWait = 7 sec" in shown
        assert "MinJobAge = 11 sec" in shown
