"""How many GPUs a step sees: by variables, and by a fake `nvidia-smi` that needs no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.agent.node.gpus import count_visible_gpus, gpu_problem, parse_list, visible_gpus
from hpc_elastic.plan.launch_plan import LaunchPlan, ResourcesPlan
from tests.plans import make_run_plan

TWO = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-8d5ba0d7)
"""
PARTS = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
  MIG 3g.20gb     Device  0: (UUID: MIG-c7384736)
  MIG 3g.20gb     Device  1: (UUID: MIG-a28ad590)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-8d5ba0d7)
"""


@pytest.mark.parametrize(
    ("returncode", "stdout", "expected"),
    [
        (0, TWO, 2),
        (0, PARTS, 3),
        (0, "No devices found.\n", 0),
        (0, "", 0),
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", None),
    ],
)
def test_the_vendors_list(returncode: int, stdout: str, expected: int | None) -> None:
    assert parse_list(returncode, stdout) == expected


@pytest.mark.parametrize(
    ("environ", "listed", "expected"),
    [
        ({}, None, None),
        ({}, 4, 4),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 4, 2),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 2, 2),  # a device cgroup numbers anew; the list is of the node
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 2, 2),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5d5ba0d6"}, None, 1),
        ({"CUDA_VISIBLE_DEVICES": ""}, 4, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 4, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, None, 0),
        ({"ROCR_VISIBLE_DEVICES": "0,1"}, None, 2),
    ],
)
def test_what_a_process_sees(environ: dict[str, str], listed: int | None, expected: int | None) -> None:
    assert visible_gpus(environ, listed) == expected


def a_fake(directory: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    program = directory / "nvidia-smi"
    program.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


def test_asks_the_program_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_fake(tmp_path, monkeypatch, '[ "$*" = -L ] || exit 1', f"cat <<'E'\n{TWO}E")
    assert count_visible_gpus({}) == 2
    assert count_visible_gpus({"CUDA_VISIBLE_DEVICES": "1"}) == 1


def test_nobody_can_tell_if_the_program_fails_or_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_fake(tmp_path, monkeypatch, "echo broken; exit 9")
    assert count_visible_gpus({}) is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert count_visible_gpus({}) is None


def asking(gpus: int | None) -> LaunchPlan:
    return make_run_plan("/run", resources=ResourcesPlan(gpus_per_node=gpus))


@pytest.mark.parametrize(("asked", "seen"), [(None, 4), (0, 4), (4, 4), (4, None)])
def test_a_node_with_what_was_asked_for_is_fit(asked: int | None, seen: int | None) -> None:
    assert gpu_problem(asking(asked), seen) is None


def test_a_node_with_another_number_is_not() -> None:
    assert gpu_problem(asking(4), 3) == "the step sees 3 GPUs, the job asked for gpus_per_node: 4"
