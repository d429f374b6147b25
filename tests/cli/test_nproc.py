"""How many workers torchrun's words for a number mean."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.cli.nproc import count_workers
from hpc_elastic.errors import UsageError
from tests.hardware.tools import fake_tool, no_tool
from tests.hardware.trees import lumi_g

HERE = str(len(os.sched_getaffinity(0)))
FOUR_GPUS = "".join(f"GPU {number}: H100 (UUID: GPU-{number})\n  MIG 1g.5gb\n" for number in range(4))


@pytest.mark.parametrize(
    ("text", "environ", "listed", "count"),
    [
        ("3", {}, FOUR_GPUS, "3"),
        ("[2, 1]", {}, FOUR_GPUS, "[2, 1]"),  # left to the job's check
        ("gpu", {}, FOUR_GPUS, "4"),
        ("auto", {}, FOUR_GPUS, "4"),
        ("gpu", {"CUDA_VISIBLE_DEVICES": "1,3"}, FOUR_GPUS, "2"),
        ("gpu", {"ROCR_VISIBLE_DEVICES": "0,1,2"}, "", "3"),
        ("auto", {"CUDA_VISIBLE_DEVICES": ""}, FOUR_GPUS, HERE),
        ("auto", {}, "", HERE),
        ("cpu", {}, FOUR_GPUS, HERE),
        ("gpu", {"SLURM_JOB_ID": "1", "SLURM_GPUS_ON_NODE": "8"}, "", "8"),
        ("gpu", {"SLURM_JOB_ID": "1", "SLURM_GPUS_PER_NODE": "a100:4"}, "", "4"),
        ("cpu", {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "64"}, "", "64"),
        ("cpu", {"SLURM_JOB_ID": "1", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8"}, "", "16"),
    ],
)
def test_words_are_counted_as_by_torchrun(
    text: str, environ: dict[str, str], listed: str, count: str, tmp_path: Path
) -> None:
    assert count_workers(text, environ, ask=fake_tool(listed) if listed else no_tool, root=str(tmp_path)) == count


@pytest.mark.parametrize(
    ("environ", "where"), [({}, "there is no GPU here"), ({"SLURM_JOB_ID": "1"}, "the allocation")]
)
def test_gpu_is_refused_where_there_is_none(environ: dict[str, str], where: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=where):
        count_workers("gpu", environ, ask=no_tool, root=str(tmp_path))


def test_amds_gpus_are_counted_without_a_tool(tmp_path: Path) -> None:
    tree = lumi_g(tmp_path)
    assert count_workers("gpu", {}, ask=no_tool, root=tree.root) == "8"
    assert count_workers("gpu", {"ROCR_VISIBLE_DEVICES": "0,2"}, ask=no_tool, root=tree.root) == "2"
