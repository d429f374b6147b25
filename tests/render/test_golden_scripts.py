"""Whole scripts as they come out of the shipped templates.

`HPC_ELASTIC_WRITE_GOLDEN=1 python -m pytest tests/render/test_golden_scripts.py` writes them anew, for a look at the
difference with git.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hpc_elastic.plan.container import ContainerPlan, MountPlan
from hpc_elastic.plan.launch_plan import LaunchPlan, RequeuePlan, ResourcesPlan, StagePlan
from hpc_elastic.plan.roles import NodesPlan
from hpc_elastic.render.array import render_array_script
from hpc_elastic.render.script import load_template, render_script
from hpc_elastic.render.template import load_array_template
from tests.plans import make_local_plan, make_plan
from tests.tiers import each_third

MOUNTS = (
    MountPlan(source="/home/ada/digits", target="/home/ada/digits"),
    MountPlan(source="${SLURM_TMPDIR}", target="${SLURM_TMPDIR}", is_optional=True),
    MountPlan(source="/data/imagenet", target="/data", is_read_only=True),
    MountPlan(
        source="/home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f",
        target="/home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f",
    ),
)
GOLDEN = Path(__file__).parent.parent / "golden"
SCRIPTS: dict[str, LaunchPlan] = {
    "slurm-plain.sh": make_plan(),
    "slurm-gpus.sh": make_plan(
        nodes=NodesPlan(min=3, max=4, spares=1),
        workers_per_node=(4, 2),
        resources=ResourcesPlan(
            gpus_per_node=4, gpus_per_node_option="4", cpus_per_task=32, memory_per_node="256G", exclusive=True
        ),
        time_s=26.5 * 3600,
        setup=(
            "module load cuda/12.4",
            "source ~/env/bin/activate",
            "if [ -d /scratch ]; then\n    export TMPDIR=/scratch\nfi",
        ),
        sbatch={"account": "abc", "partition": "gpu", "contiguous": "true", "wait-all-nodes": "1", "qos": None},
        srun=("--network=job_vni",),
    ),
    "slurm-gres.sh": make_plan(
        resources=ResourcesPlan(gpus_per_node=2, gres="gpu:a100:2,lscratch:100"),
        requeue=RequeuePlan(max=0, on=()),
    ),
    "slurm-hostile.sh": make_plan(
        name='-it\'s 100% "$(touch canary)" `x` \\ # ü',
        run_dir="/home/ada/a b'c\"d%j$(touch canary)`x`;#é/run",
        python="/home/ada/my env/bin/python3",
        workdir="/home/ada/it's",
        setup=('export GREETING="it\'s $USER"',),
        sbatch={"comment": "a # b \\ \"c\" 'd' $(touch canary)"},
    ),
    "slurm-pyxis.sh": make_plan(
        container=ContainerPlan(
            runtime="pyxis", image="nvcr.io#nvidia/pytorch:24.10-py3", mounts=MOUNTS, env=("HF_TOKEN",)
        ),
        host_python="/opt/hpc_elastic/bin/python3",
        resources=ResourcesPlan(gpus_per_node=4, gpus_per_node_option="4"),
    ),
    "slurm-apptainer.sh": make_plan(
        container=ContainerPlan(
            runtime="apptainer", image="${PROJECT}/it's $$.sif", mounts=MOUNTS, env=("HF_TOKEN", "WANDB_API_KEY")
        ),
        host_python="/opt/hpc_elastic/bin/python3",
        resources=ResourcesPlan(gpus_per_node=4, gpus_per_node_option="4"),
        setup=("module load apptainer",),
    ),
    "slurm-command.sh": make_plan(
        container=ContainerPlan(runtime="command", image=None, command="/home/ada/my bin/enter.sh", mounts=MOUNTS),
        host_python="/opt/hpc_elastic/bin/python3",
    ),
    "slurm-stage.sh": make_plan(
        stage=StagePlan(source="/home/ada/env.tar.gz", target="${SLURM_TMPDIR}", timeout_s=600.0),
        python="${HPC_ELASTIC_STAGE}/bin/python",
        host_python="/opt/hpc_elastic/bin/python3",
    ),
    "slurm-stage-apptainer.sh": make_plan(
        stage=StagePlan(source="/home/ada/torch.sif", target="/local", timeout_s=600.0),
        container=ContainerPlan(runtime="apptainer", image="${HPC_ELASTIC_STAGE}", mounts=MOUNTS),
        host_python="/opt/hpc_elastic/bin/python3",
    ),
    "local-stage.sh": make_local_plan(stage=StagePlan(source="/home/ada/env", target="/tmp", timeout_s=600.0)),
    "local-plain.sh": make_local_plan(setup=("export A=1",)),
    "local-limit.sh": make_local_plan(time_s=3600, setup=("export A=1",)),
}


ARRAYS: dict[str, tuple[LaunchPlan, int, int | None]] = {  # a plan, how many runs, how many at a time
    "slurm-array.sh": (make_plan(sbatch={"account": "abc"}, time_s=600), 8, 2),
    "slurm-array-hostile.sh": (
        make_plan(name="it's", run_dir="/home/ada/a b'c\"d%j$(touch canary)`x`;#é/run"),
        1,
        None,
    ),
    "local-array.sh": (make_local_plan(), 3, None),
}


def render(name: str) -> str:
    if name in ARRAYS:
        return render_array(*ARRAYS[name])
    plan = SCRIPTS[name]
    return render_script(plan, load_template(plan.template, job_dir="/"))


def render_array(plan: LaunchPlan, count: int, limit: int | None) -> str:
    plans = [dataclasses.replace(plan, run_dir=f"{plan.run_dir}/{number}") for number in range(count)]
    templates = load_array_template(plan.scheduler), load_template(plan.template, job_dir="/")
    return render_array_script(plans, *templates, limit=limit)


NAMES = [*SCRIPTS, *ARRAYS]


@pytest.mark.parametrize("name", NAMES)
def test_renders_the_golden_script(name: str) -> None:
    script = render(name)
    if os.environ.get("HPC_ELASTIC_WRITE_GOLDEN") == "1":
        (GOLDEN / name).write_text(script, encoding="utf-8")
    assert script == (GOLDEN / name).read_text(encoding="utf-8")


def test_every_golden_script_is_rendered_by_a_test() -> None:
    assert {path.name for path in GOLDEN.glob("*.sh")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_script_is_good_bash(name: str) -> None:
    subprocess.run(["bash", "-n", GOLDEN / name], check=True)


@pytest.mark.long
@pytest.mark.parametrize("name", each_third(NAMES, of="test_the_golden_script_passes_shellcheck"))
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_golden_script_passes_shellcheck(name: str) -> None:
    # A setup line sources a file that is only on the cluster; hostile text looks as if it should expand.
    command = ["shellcheck", "--exclude=SC1090,SC1091,SC2016", "--format=gcc", str(GOLDEN / name)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == ""
