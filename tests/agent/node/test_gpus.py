"""How many GPUs a step sees, beside what the job asked for and what Slurm says; `nvidia-smi` is a fake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.agent.node.gpus import NodeGpus, ask_tool, count_gpus, gpu_problem, gpu_remarks
from hpc_elastic.plan.launch_plan import LaunchPlan, ResourcesPlan
from tests.hardware.tools import fake_tool, no_tool
from tests.hardware.trees import Tree
from tests.plans import make_run_plan

TWO = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-8d5ba0d7)
"""
PARTS = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
  MIG 3g.20gb     Device  0: (UUID: MIG-c7384736)
  MIG 3g.20gb     Device  1: (UUID: MIG-a28ad590)
"""


def a_fake(directory: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    program = directory / "nvidia-smi"
    program.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


def test_asks_the_program_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_fake(tmp_path, monkeypatch, '[ "$*" = -L ] || exit 1', f"cat <<'E'\n{TWO}E")
    assert count_gpus({}).count == 2
    assert count_gpus({"CUDA_VISIBLE_DEVICES": "1"}).count == 1


def test_nobody_can_tell_if_the_program_fails_or_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_fake(tmp_path, monkeypatch, "echo broken; exit 9")
    assert count_gpus({}, root=str(tmp_path)).count is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert count_gpus({}, root=str(tmp_path)).count is None


def test_a_program_that_hangs_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_fake(tmp_path, monkeypatch, "exec sleep 60")
    with pytest.raises(OSError, match=r"nvidia-smi gave no answer within 0\.01 s"):
        ask_tool(["nvidia-smi", "-L"], 0.01)


def asking(gpus: int | None, **changes: Any) -> LaunchPlan:
    return make_run_plan("/run", resources=ResourcesPlan(gpus_per_node=gpus), **changes)


def of(environ: dict[str, str], root: Path, listed: str | None = None) -> NodeGpus:
    return count_gpus(environ, ask=no_tool if listed is None else fake_tool(listed), root=str(root))


@pytest.mark.parametrize("asked", [None, 0, 2])
def test_a_node_with_what_was_asked_for_is_fit(asked: int | None, tmp_path: Path) -> None:
    assert gpu_problem(asking(asked), of({}, tmp_path, TWO)) is None


def test_a_node_of_which_nothing_is_known_is_fit(tmp_path: Path) -> None:
    assert gpu_problem(asking(4), of({}, tmp_path)) is None


@pytest.mark.parametrize(
    ("environ", "listed", "problem"),
    [
        ({}, TWO, "the step sees 2 GPUs, the job asked for gpus_per_node: 4"),
        (
            {"CUDA_VISIBLE_DEVICES": "2,3"},
            TWO,
            "the step sees 0 GPUs, the job asked for gpus_per_node: 4 (CUDA_VISIBLE_DEVICES=2,3; the node shows 2)",
        ),
        (
            {"CUDA_VISIBLE_DEVICES": "0,1,3", "SLURM_GPUS_ON_NODE": "4", "SLURM_STEP_GPUS": "4,5,6,7"},
            None,
            (
                "the step sees 3 GPUs, the job asked for gpus_per_node: 4 "
                "(CUDA_VISIBLE_DEVICES=0,1,3; Slurm gave it 4 GPUs [4,5,6,7])"
            ),
        ),
        ({"SLURM_GPUS_ON_NODE": "3"}, None, "Slurm gave the step 3 GPUs, the job asked for gpus_per_node: 4"),
        (
            {"SLURM_GPUS_ON_NODE": "1", "SLURM_JOB_GPUS": "0"},
            None,
            "Slurm gave the step 1 GPU [0], the job asked for gpus_per_node: 4",
        ),
    ],
)
def test_a_node_with_another_number_is_not_fit_and_says_what_tells(
    environ: dict[str, str], listed: str | None, problem: str, tmp_path: Path
) -> None:
    assert gpu_problem(asking(4), of(environ, tmp_path, listed)) == problem


def test_a_number_that_slurm_does_not_share_is_remarked(tmp_path: Path) -> None:
    gpus = of({"SLURM_GPUS_ON_NODE": "4"}, tmp_path, TWO)
    expected = ["the step sees 2 GPUs, and by Slurm it has another number (Slurm gave it 4 GPUs)"]
    assert gpu_remarks(asking(None), gpus, 2) == expected
    assert gpu_remarks(asking(None), of({"SLURM_GPUS_ON_NODE": "2"}, tmp_path, TWO), 2) == []
    assert gpu_remarks(asking(None), of({}, tmp_path), 2) == []


def test_several_mig_parts_need_virtual_local_rank(tmp_path: Path) -> None:
    gpus = of({"CUDA_VISIBLE_DEVICES": "MIG-c7384736,MIG-a28ad590"}, tmp_path, PARTS)
    assert gpus.count == 2
    (line,) = gpu_remarks(asking(2), gpus, 2)
    assert line.endswith("virtual_local_rank: true gives each worker its own")
    assert gpu_remarks(asking(2, virtual_local_rank=True), gpus, 2) == []
    assert gpu_remarks(asking(2), gpus, 1) == []


@pytest.mark.parametrize("asked", [2, 4])
def test_a_site_of_intels_may_mean_cards_or_tiles(asked: int, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for number, address in enumerate(("0000:3a:00.0", "0000:4d:00.0")):
        tree.pci(address, 0, "0-7", vendor="0x8086", kind="0x038000")
        for tile in (0, 1):
            tree.write(f"sys/class/drm/card{number}/gt/gt{tile}/id", str(tile))
        (tmp_path / f"sys/class/drm/card{number}/device").symlink_to(tmp_path / f"sys/bus/pci/devices/{address}")
    gpus = of({"SLURM_GPUS_ON_NODE": str(asked)}, tmp_path)
    assert (gpus.count, gpu_problem(asking(asked), gpus), gpu_remarks(asking(asked), gpus, 2)) == (4, None, [])
    masked = of({"ZE_AFFINITY_MASK": "0.0,0.1,1.0,1.1"}, tmp_path / "nowhere")
    assert gpu_problem(asking(asked), masked) is None
    assert gpu_problem(asking(3), gpus) is not None
