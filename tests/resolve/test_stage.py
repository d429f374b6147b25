from __future__ import annotations

import pytest

from hpc_elastic.plan.launch_plan import StagePlan
from tests.resolve.test_container import problems
from tests.resolve.test_launch_plan import resolve


def test_a_source_is_relative_to_the_job_file_and_the_target_a_folder_of_the_node() -> None:
    plan = resolve("stage: {source: ../env.tar, target: '/local/${USER}', timeout: 90s}")
    assert plan.stage == StagePlan(source="/home/ada/env.tar", target="/local/${USER}", timeout_s=90.0)
    assert (plan.python, plan.host_python) == ("/opt/python/bin/python3", None)
    named = resolve("stage: {source: '${ENVS}/a', target: /local}").stage
    assert named == StagePlan(source="${ENVS}/a", target="/local", timeout_s=600.0)


def test_the_target_is_the_sites_scratch_if_the_job_names_none() -> None:
    plan = resolve("stage: {source: env}", "scratch: ${SLURM_TMPDIR}\n")
    assert plan.stage is not None
    assert plan.stage.target == "${SLURM_TMPDIR}"


def test_a_python_of_the_copy_leaves_the_script_the_one_that_submits() -> None:
    plan = resolve("stage: {source: env, target: /local}\npython: ${HPC_ELASTIC_STAGE}/bin/python")
    assert (plan.python, plan.host_python) == ("${HPC_ELASTIC_STAGE}/bin/python", "/opt/python/bin/python3")


def test_an_image_sees_the_copy() -> None:
    plan = resolve(
        "stage: {source: a.sif, target: /local}\ncontainer: {runtime: apptainer, image: '${HPC_ELASTIC_STAGE}'}"
    )
    assert plan.container is not None
    (mount,) = [mount for mount in plan.container.mounts if mount.source == "${HPC_ELASTIC_STAGE}"]
    assert (mount.is_optional, mount.is_read_only, plan.container.image) == (True, True, "${HPC_ELASTIC_STAGE}")


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ("stage: {source: a}", "stage.target: missing; expected a folder of the node's own disk"),
        ("stage: {source: a, target: b}", "stage.target: expected an absolute path, found 'b'"),
        ("python: ${HPC_ELASTIC_STAGE}/bin/python", "python: ${HPC_ELASTIC_STAGE} is the copy that stage makes; give"),
        (
            "stage: {source: a, target: /b}\ncontainer: {runtime: pyxis, image: a}",
            "stage: with the runtime pyxis nothing runs on a node before the image",
        ),
    ],
)
def test_a_stage_that_cannot_work_is_refused(job: str, problem: str) -> None:
    (found,) = problems(job)
    assert found.startswith(problem)


def test_a_target_of_the_site_alone_stages_nothing() -> None:
    assert resolve("", "defaults: {stage: {target: /local}}\n").stage is None
