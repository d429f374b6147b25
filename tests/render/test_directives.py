from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.errors import TemplateError
from hpc_elastic.plan.launch_plan import RequeuePlan, ResourcesPlan, SignalsPlan
from hpc_elastic.plan.roles import NodesPlan
from hpc_elastic.render.directives import sbatch_directives, step_options
from tests.plans import make_plan


@pytest.mark.parametrize(
    ("changes", "directive"),
    [
        ({"nodes": NodesPlan(min=2, max=2)}, "--nodes=2"),
        ({"nodes": NodesPlan(min=2, max=4)}, "--nodes=2-4"),
        ({"nodes": NodesPlan(min=2, max=4, spares=1)}, "--nodes=3-5"),
        ({"time_s": 5400.0}, "--time=01:30:00"),
        ({"time_s": 90000.2}, "--time=1-01:00:01"),
        ({"resources": ResourcesPlan(cpus_per_worker=3, cpus_per_task=12)}, "--cpus-per-task=12"),
        ({"resources": ResourcesPlan(memory_per_node="64G")}, "--mem=64G"),
        ({"resources": ResourcesPlan(memory_per_cpu="2G")}, "--mem-per-cpu=2G"),
        ({"resources": ResourcesPlan(memory_per_gpu="80G")}, "--mem-per-gpu=80G"),
        ({"resources": ResourcesPlan(gpus_per_node_option="a100:4")}, "--gpus-per-node=a100:4"),
        ({"resources": ResourcesPlan(gpus_per_node=4, gres="gpu:a100:4")}, "--gres=gpu:a100:4"),
        ({"resources": ResourcesPlan(exclusive=True)}, "--exclusive"),
        ({"requeue": RequeuePlan(max=1, on=())}, "--requeue"),
        ({"requeue": RequeuePlan(max=0, on=())}, "--no-requeue"),
        ({"run_dir": "/runs/50%/a b"}, '--output="/runs/50%%/a b/slurm-%j.out"'),
        ({"sbatch": {"account": "abc"}}, "--account=abc"),
        ({"sbatch": {"p": "gpu"}}, "-p gpu"),
        ({"sbatch": {"contiguous": "true"}}, "--contiguous"),
    ],
)
def test_a_directive_says_the_plan(changes: dict[str, Any], directive: str) -> None:
    assert directive in sbatch_directives(make_plan(**changes))


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({}, "--time"),
        ({}, "--cpus-per-task"),
        ({}, "--mem"),
        ({}, "--gpus-per-node"),
        ({"resources": ResourcesPlan(gpus_per_node=4, gres="gpu:a100:4")}, "--gpus-per-node"),
        ({"sbatch": {"qos": None}}, "--qos"),
        ({"sbatch": {"contiguous": "false"}}, "--contiguous"),
    ],
)
def test_nothing_is_asked_for_that_the_plan_does_not_say(changes: dict[str, Any], option: str) -> None:
    assert not [line for line in sbatch_directives(make_plan(**changes)) if line.startswith(option)]


def test_the_open_map_comes_last() -> None:
    plan = make_plan(sbatch={"partition": "gpu", "qos": "high"})
    assert sbatch_directives(plan)[-2:] == ("--partition=gpu", "--qos=high")


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, ()),
        ({"resources": ResourcesPlan(cpus_per_task=8)}, ("--cpus-per-task=8",)),
        ({"resources": ResourcesPlan(gpus_per_node_option="2")}, ("--gpus-per-node=2",)),
        ({"resources": ResourcesPlan(gres="gpu:2")}, ("--gres=gpu:2",)),
        ({"resources": ResourcesPlan(gpus_per_node=2)}, ()),
        ({"resources": ResourcesPlan(gres="lscratch:9")}, ("--gres=lscratch:9",)),
        ({"srun": ("--mpi=pmix",)}, ("--mpi=pmix",)),
    ],
)
def test_the_step_gets_what_the_job_asked_for(changes: dict[str, Any], options: tuple[str, ...]) -> None:
    assert step_options(make_plan(**changes)) == options


@pytest.mark.parametrize("resources", [ResourcesPlan(gpus_per_node_option="2"), ResourcesPlan(gres="gpu:2")])
def test_the_step_has_no_option_that_srun_refuses_before_21_08_1(resources: ResourcesPlan) -> None:
    assert not [option for option in step_options(make_plan(resources=resources)) if "bind" in option]


@pytest.mark.parametrize("name", ["--account", "a b", "account\n", "", "x;y", "ä"])
def test_the_open_map_rejects_what_is_no_option(name: str) -> None:
    with pytest.raises(TemplateError, match="not the name of an sbatch option"):
        sbatch_directives(make_plan(sbatch={name: "1"}))


def test_the_run_directory_rejects_a_backslash() -> None:
    with pytest.raises(TemplateError, match="backslash"):
        sbatch_directives(make_plan(run_dir="/runs/a\\b"))


@pytest.mark.parametrize(
    ("requeue", "expected"),
    [
        (RequeuePlan(max=5, on=("time_limit",)), "--requeue"),
        (RequeuePlan(max=0, on=("time_limit",)), "--no-requeue"),
        (RequeuePlan(max=5, on=("time_limit",), by="chain"), "--no-requeue"),
    ],
)
def test_slurm_is_told_whether_it_may_requeue_by_itself(requeue: RequeuePlan, expected: str) -> None:
    assert expected in sbatch_directives(make_plan(requeue=requeue))


def test_the_signal_is_for_the_batch_shell_only_and_comes_with_the_lead() -> None:
    signals = SignalsPlan(notice="USR2", lead_s=90.5, grace_s=10, restart_grace_s=1)
    assert "--signal=B:USR2@91" in sbatch_directives(make_plan(signals=signals))
    without = SignalsPlan(notice="USR2", lead_s=0, grace_s=0, restart_grace_s=1)
    assert not [line for line in sbatch_directives(make_plan(signals=without)) if "signal" in line]
