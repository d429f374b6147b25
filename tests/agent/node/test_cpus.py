"""How many threads a worker of the local backend has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.agent.node.cpus import cores_of_step, count_cores, describe_narrowness, share_cores
from hpc_elastic.plan.launch_plan import LaunchPlan, ResourcesPlan
from hpc_elastic.plan.roles import NodesPlan
from hpc_elastic.scheduler.allocation import Allocation
from tests.plans import make_local_plan, make_role


def place(nodes: int = 2, *, is_local: bool = True, runs_at_once: int = 1) -> Allocation:
    return Allocation(
        job_id="local-1-2",
        restart_count=0,
        array_task=None,
        node_id=0,
        nodes=tuple(f"local{number}" for number in range(nodes)),
        is_local=is_local,
        runs_at_once=runs_at_once,
    )


def plan(nodes: int = 2, workers: int | tuple[int, ...] = 1, *, spares: int = 0, **changes: Any) -> LaunchPlan:
    wanted = NodesPlan(min=1, max=nodes, spares=spares)
    return make_local_plan(nodes=wanted, workers_per_node=workers, **changes)


@pytest.mark.parametrize(
    ("nodes", "workers", "cores", "threads"),
    [(2, 1, 16, 8), (2, 4, 16, 2), (1, 4, 16, 4), (3, 1, 16, 5), (2, (1, 3), 16, 4), (4, 8, 16, 1), (2, 1, 1, 1)],
)
def test_all_workers_share_the_cores_and_have_one_at_least(
    nodes: int, workers: int | tuple[int, ...], cores: int, threads: int
) -> None:
    assert share_cores(plan(nodes, workers), place(nodes), cores) == threads


def test_a_worker_alone_has_what_torch_takes_by_itself() -> None:
    assert share_cores(plan(1, 1), place(1), 16) is None


def test_every_role_has_its_part() -> None:
    roles = (make_role("actor", 2, 3), make_role("learner", 1, 2))
    assert share_cores(make_local_plan(roles=roles), place(3), 16) == 2


def test_a_spare_has_no_part_while_it_waits() -> None:
    assert share_cores(plan(2, 1, spares=2), place(4), 16) == 8


def test_runs_of_an_array_that_run_side_by_side_share_as_well() -> None:
    assert share_cores(plan(2, 1), place(2, runs_at_once=4), 16) == 2
    assert share_cores(plan(1, 1), place(1, runs_at_once=4), 16) == 4


def test_nothing_is_shared_if_the_job_says_what_a_worker_has() -> None:
    asked = plan(2, 1, resources=ResourcesPlan(cpus_per_worker=3))
    assert share_cores(asked, place(2), 16) is None


@pytest.mark.parametrize(("workers", "threads"), [(8, 7), (3, 18), (1, None), (64, 1)])
def test_the_workers_of_a_slurm_node_share_its_own_cores(workers: int, threads: int | None) -> None:
    assert share_cores(plan(4, workers), place(4, is_local=False), 56) == threads


@pytest.mark.parametrize(
    ("cores", "cpus", "of_step", "expected"),
    [
        (56, 56, None, 56),
        (56, 112, 112, 56),  # hardware threads, all of the step's
        (64, 128, 16, 8),  # Slurm does not keep the step to its CPUs: all of the node may be used
        (64, 64, 1, 1),
        (4, 4, 56, 4),  # bound to fewer than the step has
        (2, 128, 1, 1),
    ],
)
def test_a_step_that_is_not_confined_has_the_part_that_slurm_says(
    cores: int, cpus: int, of_step: int | None, expected: int
) -> None:
    assert cores_of_step(cores, cpus, of_step) == expected


def test_an_affinity_narrower_than_the_steps_is_told() -> None:
    usable = len(os.sched_getaffinity(0))
    assert describe_narrowness({}) is None
    assert describe_narrowness({"SLURM_CPUS_ON_NODE": str(usable)}) is None
    assert describe_narrowness({"SLURM_CPUS_ON_NODE": "x"}) is None
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from hpc_elastic.agent.node.cpus import describe_narrowness\n"
        "print(describe_narrowness({'SLURM_CPUS_ON_NODE': '2'}))"
    )
    if os.cpu_count() != 1:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("the agent may use 1 of the 2 CPUs that its step has on this node")


class Machine:
    """The files of a machine that are looked at."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def cores(self, *cpus: int) -> int:
        return count_cores(frozenset(cpus or range(8)), root=str(self.root))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_cpus_are_counted_if_nothing_else_is_known(machine: Machine) -> None:
    assert machine.cores(0, 5, 7) == 3


def test_hardware_threads_of_a_core_count_once(machine: Machine) -> None:
    for cpu in range(8):
        machine.write(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}")
    assert machine.cores() == 4
    assert machine.cores(0, 1, 4) == 2


@pytest.mark.parametrize(("quota", "cores"), [("400000 100000", 4), ("250000 100000", 2), ("50000 100000", 1)])
def test_the_quota_of_a_container_bounds_them(machine: Machine, quota: str, cores: int) -> None:
    machine.write("/proc/self/cgroup", "0::/")
    machine.write("/sys/fs/cgroup/cpu.max", quota)
    assert machine.cores() == cores


@pytest.mark.parametrize("path", ["/../../elsewhere", "/..", "//", "/gone"])
def test_the_quota_that_can_be_seen_bounds_a_process_whose_own_cgroup_cannot(path: str, machine: Machine) -> None:
    machine.write("/proc/self/cgroup", f"0::{path}")
    machine.write("/sys/fs/cgroup/cpu.max", "200000 100000")
    assert machine.cores() == 2


def test_the_smallest_quota_of_all_cgroups_above_counts(machine: Machine) -> None:
    machine.write("/proc/self/cgroup", "0::/user.slice/user-7.slice/session")
    machine.write("/sys/fs/cgroup/user.slice/cpu.max", "max 100000")
    machine.write("/sys/fs/cgroup/user.slice/user-7.slice/cpu.max", "300000 100000")
    machine.write("/sys/fs/cgroup/user.slice/user-7.slice/session/cpu.max", "600000 100000")
    assert machine.cores() == 3


def test_the_quota_of_the_first_kind_of_cgroups_counts(machine: Machine) -> None:
    machine.write("/proc/self/cgroup", "7:memory:/a\n4:cpu,cpuacct:/a")
    machine.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1")
    machine.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    assert machine.cores() == 8
    machine.write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "200000")
    machine.write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000")
    assert machine.cores() == 2


@pytest.mark.parametrize("text", ["", "garbage", "max", "1e9 0", "-5 100000"])
def test_a_quota_that_cannot_be_read_bounds_nothing(machine: Machine, text: str) -> None:
    machine.write("/proc/self/cgroup", "0::/")
    machine.write("/sys/fs/cgroup/cpu.max", text)
    assert machine.cores() == 8


def test_the_affinity_of_the_process_counts_and_not_the_machines_cpus() -> None:
    one = str(min(os.sched_getaffinity(0)))
    code = "from hpc_elastic.agent.node.cpus import cores_of_this_process; print(cores_of_this_process())"
    command = ["taskset", "--cpu-list", one, sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"
