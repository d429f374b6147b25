"""Memory, interfaces and CPUs, as the node itself says."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.agent.health.node import find_cpu_problem, find_interface_problem, find_memory_problem
from hpc_elastic.plan.launch_plan import NetworkPlan, ResourcesPlan
from tests.plans import make_run_plan

MEMINFO = "MemTotal:       65536000 kB\nMemAvailable:   41943040 kB\n"  # 40 GiB


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (ResourcesPlan(), None),
        (ResourcesPlan(memory_per_node="0"), None),
        (ResourcesPlan(memory_per_node="50G"), None),  # 80 % of it are there
        (ResourcesPlan(memory_per_node="51G"), "40.0 GiB of memory are available, the job asked for 51.0 GiB"),
        (ResourcesPlan(memory_per_cpu="4G", cpus_per_task=8), None),
        (
            ResourcesPlan(memory_per_cpu="4096", cpus_per_task=16),
            "40.0 GiB of memory are available, the job asked for 64.0 GiB",
        ),
        (
            ResourcesPlan(memory_per_gpu="30G", gpus_per_node=2),
            "40.0 GiB of memory are available, the job asked for 60.0 GiB",
        ),
    ],
)
def test_memory_is_compared_with_what_the_job_asks_for(resources: ResourcesPlan, expected: str | None) -> None:
    assert find_memory_problem(resources, MEMINFO) == expected


def test_memory_that_the_kernel_does_not_tell_is_no_problem() -> None:
    assert find_memory_problem(ResourcesPlan(memory_per_node="51G"), "MemTotal: 1 kB\n") is None


@pytest.fixture
def sys(tmp_path: Path) -> str:
    """A /sys with an interface that is up, one that is down, and a loopback."""
    for name, state in (("lo", "unknown"), ("ib0", "down"), ("ib1", "up")):
        (tmp_path / "class/net" / name).mkdir(parents=True)
        (tmp_path / "class/net" / name / "operstate").write_text(f"{state}\n")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (NetworkPlan(), None),
        (NetworkPlan(interface="lo"), None),
        (NetworkPlan(interface="hsn0"), "there is no interface hsn0, only ib0, ib1, lo"),
        (NetworkPlan(interface="ib0"), "interface ib0 is down"),
        (NetworkPlan(interface="ib1"), "ib1 has no IPv4 address"),
        (NetworkPlan(nccl_socket_ifname="ib"), None),
        (NetworkPlan(nccl_socket_ifname="=ib1"), None),
        (NetworkPlan(nccl_socket_ifname="^docker,lo"), None),
        (NetworkPlan(nccl_socket_ifname="=ib0"), "no interface ib0 is up, which nccl_socket_ifname names"),
        (NetworkPlan(nccl_socket_ifname="hsn"), "no interface hsn is up, which nccl_socket_ifname names"),
    ],
)
def test_the_interfaces_that_the_site_names_are_there_and_up(
    sys: str, network: NetworkPlan, expected: str | None
) -> None:
    assert find_interface_problem(network, sys=sys) == expected


def test_the_cpus_of_the_step_are_compared_with_those_that_the_agent_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(make_run_plan("/run"), resources=ResourcesPlan(cpus_per_task=8))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert find_cpu_problem(plan) == "the agent may use 1 CPUs, the step has 8"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert find_cpu_problem(plan) is None
    assert find_cpu_problem(replace(plan, resources=ResourcesPlan())) is None
