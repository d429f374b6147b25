"""What the options of torchrun come to."""

from __future__ import annotations

import pytest

from hpc_elastic.integrations.torchrun.settings import Settings, build_plan, read_settings, run_name
from hpc_elastic.plan.launch_plan import LaunchPlan, dump_plan, parse_plan
from hpc_elastic.scheduler.allocation import Allocation

# What torch 2.13 fills in by itself.
TORCHS = {"timeout": 900}


def a_place(nodes: int = 4) -> Allocation:
    names = tuple(f"node{number}" for number in range(1, nodes + 1))
    return Allocation(job_id="17", restart_count=0, array_task=None, node_id=0, nodes=names, is_local=False)


def settings(**config: object) -> Settings:
    return read_settings({**TORCHS, **config}, min_nodes=3, max_nodes=4, nodes=4)


def plan(nodes: int = 4, **config: object) -> LaunchPlan:
    return build_plan(
        read_settings({**TORCHS, **config}, min_nodes=2, max_nodes=3, nodes=nodes),
        a_place(nodes),
        name="torchrun-17-0",
        run_dir="/home/ada/hpc-elastic-runs/torchrun-17-0",
        package_dir="/opt/hpc_elastic",
        created="2026-01-02T03:04:05.000000Z",
        command=["--nnodes=2:3", "train.py"],
        workdir="/home/ada/$money",
        python="/usr/bin/python3",
    )


def test_the_defaults_are_torchs_join_timeout_and_our_lease() -> None:
    found = settings()
    assert (found.join_timeout_s, found.lease_s, found.directory) == (600.0, 10.0, "hpc-elastic-runs")


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), (90, 90.0), ("2m", 120.0), ("1.5", 1.5)])
def test_a_time_is_in_seconds_as_in_torch_or_has_a_unit(text: object, seconds: float) -> None:
    assert settings(join_timeout=text).join_timeout_s == seconds


def test_options_of_torchs_own_backends_are_passed_over() -> None:
    assert settings(is_host="true", last_call_timeout="5", read_timeout="60") == settings()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"join_timout": "5"}, "join_timout is no option of the backend hpc-elastic; did you mean join_timeout?"),
        ({"zzz": "5"}, "zzz is no option of the backend hpc-elastic; known are dir, hostname_transform, interface"),
        ({"lease": "1"}, "lease: expected 3 to 600 seconds, found 1; the default, 10, is right for most clusters"),
        ({"lease": "2h"}, "lease: expected 3 to 600 seconds, found 7200; the default, 10, is right for most clusters"),
        ({"join_timeout": "soon"}, "join_timeout: expected a duration such as 90m"),
        ({"join_timeout": "-5"}, "join_timeout: expected "),
    ],
)
def test_settings_reject_what_has_no_sense(config: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="--rdzv-conf: ") as caught:
        settings(**config)
    assert message in str(caught.value)


def test_settings_reject_a_step_that_is_too_small() -> None:
    with pytest.raises(ValueError, match="--nnodes asks for at least 3 nodes, but the step of srun has 2"):
        read_settings(TORCHS, min_nodes=3, max_nodes=4, nodes=2)


def test_the_name_of_a_run_has_job_and_step() -> None:
    assert run_name(a_place(), {"SLURM_STEP_ID": "0"}) == "torchrun-17-0"
    assert run_name(a_place(), {}) == "torchrun-17"


def test_the_plan_is_one_that_can_be_read_back() -> None:
    made = plan()
    assert parse_plan(dump_plan(made)) == made
    assert (made.nodes.min, made.nodes.max, made.nodes.spares) == (2, 3, 1)
    assert (made.elastic.rejoin, made.workdir) == ("immediately", "/home/ada/$$money")
