from __future__ import annotations

import pytest

from hpc_elastic.errors import JobError
from hpc_elastic.job.parse import parse_job
from hpc_elastic.plan.container import ContainerPlan, MountPlan
from hpc_elastic.resolve.launch_plan import resolve_plan
from hpc_elastic.site.parse import parse_site
from tests.resolve.test_launch_plan import CONTEXT, SITE_HEAD, resolve

IMAGE = "container: {runtime: apptainer, image: a.sif}\n"
RUN = MountPlan(source=CONTEXT.run_dir, target=CONTEXT.run_dir)
WORK = MountPlan(source=CONTEXT.job_dir, target=CONTEXT.job_dir)
PACKAGE = MountPlan(source=CONTEXT.package_dir, target=CONTEXT.package_dir, is_read_only=True)


def problems(job: str, site: str = "") -> list[str]:
    with pytest.raises(JobError) as caught:
        resolve(job, site)
    return list(caught.value.problems)


def test_an_image_has_the_run_the_package_and_workdir_at_their_own_paths() -> None:
    plan = resolve(IMAGE)
    assert plan.container == ContainerPlan(
        runtime="apptainer", image="/home/ada/digits/a.sif", mounts=(RUN, WORK, PACKAGE), env=()
    )
    assert (plan.python, plan.host_python) == ("python3", "/opt/python/bin/python3")


def test_a_run_without_an_image_has_no_python_of_its_own_for_the_script() -> None:
    plan = resolve()
    assert (plan.container, plan.host_python, plan.python) == (None, None, "/opt/python/bin/python3")


def test_what_a_plan_names_elsewhere_is_mounted_and_what_lies_within_another_comes_later() -> None:
    job = (
        IMAGE
        + "metrics: {textfile: /srv/metrics/run.prom}\nstate: {load_from: /runs/before}\nworkdir: /w/${USER}/deep\n"
    )
    plan = resolve(job, "scratch: ${SLURM_TMPDIR}\n")
    assert plan.container is not None
    paths = [mount.source for mount in plan.container.mounts]
    assert set(paths) == {
        *("/srv/metrics", "/runs/before", "/w/${USER}/deep", "${SLURM_TMPDIR}"),
        *(CONTEXT.run_dir, CONTEXT.package_dir),
    }
    assert [path.count("/") for path in paths] == sorted(path.count("/") for path in paths)
    assert [mount.source for mount in plan.container.mounts if mount.is_optional] == ["${SLURM_TMPDIR}"]


@pytest.mark.parametrize(
    ("mount", "expected"),
    [
        ("data", MountPlan(source="/home/ada/digits/data", target="/home/ada/digits/data")),
        ("../data:/data", MountPlan(source="/home/ada/data", target="/data")),
        ("/data:/data:ro", MountPlan(source="/data", target="/data", is_read_only=True)),
        ("${DATA}:/data:rw", MountPlan(source="${DATA}", target="/data")),
        ("${DATA}", MountPlan(source="${DATA}", target="${DATA}")),
    ],
)
def test_mounts_of_the_job_are_relative_to_its_file(mount: str, expected: MountPlan) -> None:
    plan = resolve(f"container: {{runtime: apptainer, image: a.sif, mounts: ['{mount}']}}")
    assert plan.container is not None
    assert expected in plan.container.mounts


def test_a_mount_of_the_job_goes_before_our_own_at_the_same_place() -> None:
    job = f"container: {{runtime: apptainer, image: a.sif, mounts: ['{CONTEXT.job_dir}:{CONTEXT.job_dir}:ro']}}"
    plan = resolve(job)
    assert plan.container is not None
    assert [mount.is_read_only for mount in plan.container.mounts if mount.target == CONTEXT.job_dir] == [True]


@pytest.mark.parametrize(
    "mount", ["a:b", "/a:/b:rx", "/a:/b:ro:z", "':/b'", "'/a:'", "'/a,b'", "'/a b'", "~/a", "$A", "''"]
)
def test_what_is_no_mount_is_refused(mount: str) -> None:
    assert problems(f"container: {{runtime: apptainer, image: a.sif, mounts: [{mount}]}}")[0].startswith(
        "digits.yaml:2: container.mounts[0]: "
    )


@pytest.mark.parametrize(
    ("runtime", "image", "expected"),
    [
        ("apptainer", "docker://ubuntu:24.04", "docker://ubuntu:24.04"),
        ("apptainer", "${PROJECT}/a.sif", "${PROJECT}/a.sif"),
        ("pyxis", "nvcr.io#nvidia/pytorch:24.10-py3", "nvcr.io#nvidia/pytorch:24.10-py3"),
        ("pyxis", "./a.sqsh", "/home/ada/digits/a.sqsh"),
        ("pyxis", "ubuntu", "ubuntu"),
    ],
)
def test_the_name_of_an_image_is_kept_and_a_path_is_made_absolute(runtime: str, image: str, expected: str) -> None:
    plan = resolve(f"container: {{runtime: {runtime}, image: '{image}'}}")
    assert plan.container is not None
    assert plan.container.image == expected


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("{image: a.sif}", "container.runtime: missing; expected pyxis, apptainer or command"),
        ("{runtime: pyxis}", "container.image: missing; the runtime pyxis needs one"),
        (
            "{runtime: pyxis, image: a, command: b}",
            "container.command: expected the runtime command beside it, found pyxis",
        ),
        (
            "{runtime: command, image: a}",
            "container.command: missing; the runtime command needs the program that starts the agent in the image",
        ),
        (
            "{runtime: pyxis, image: a, env: [ALL]}",
            "container.env: ALL is a word of srun's --export, by which pyxis is told; name each variable",
        ),
    ],
)
def test_a_container_that_lacks_something_is_refused(keys: str, problem: str) -> None:
    assert problems(f"container: {keys}") == [problem]


def test_a_runtime_that_the_site_does_not_have_is_refused_with_its_page() -> None:
    site = "url: https://here.example/containers\ncontainer_runtimes: [pyxis]\n"
    expected = (
        "container.runtime: expected pyxis, which site here has (page https://here.example/containers), found apptainer"
    )
    assert problems(IMAGE, site) == [expected]


def test_a_site_can_give_the_runtime_and_the_job_the_image() -> None:
    site = "defaults: {container: {runtime: pyxis, mounts: [/data]}}\n"
    plan = resolve("container: {image: ubuntu}", site)
    assert plan.container is not None
    assert (plan.container.runtime, plan.container.image) == ("pyxis", "ubuntu")
    assert resolve("", site).container is None, "a runtime alone is no wish for an image"
    assert resolve("container: null", "defaults: {container: {runtime: pyxis, image: a}}\n").container is None


def test_a_path_of_the_run_that_cannot_be_mounted_is_refused() -> None:
    why = "',' in a path is a separator to container runtimes; take another path (--run-dir, workdir)"
    assert problems(IMAGE + "workdir: '/a,b'") == [f"container: /a,b cannot be mounted: {why}"]


def test_this_machine_runs_no_container() -> None:
    job = parse_job("entrypoint: {script: a.py}\n" + IMAGE, file="job.yaml")
    site = parse_site(SITE_HEAD.replace("slurm", "local"), path="here.yaml")
    with pytest.raises(
        JobError, match="container: expected a site of Slurm; the site here starts agents without a cont"
    ):
        resolve_plan(job, site, CONTEXT)
