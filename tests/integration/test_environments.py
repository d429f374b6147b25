"""Two environments: one that submits and has no torch, one that trains and has nothing of ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.conftest import DIGITS, Door
from tests.integration.environments import (
    LIGHT,
    find_python,
    install_wheel,
    link_all_but,
    link_distributions,
    make_environment,
)
from tests.test_wheel import REPOSITORY, build
from tests.tiers import variants

pytestmark = pytest.mark.local

JOB = "name: probe\nsite: local\nnodes: 2\nworkers_per_node: 2\ntime: 10m\nrestart: {max_restarts: 0}\n"
# What a worker and its children see of the submitting environment: nothing.
LOOK = """
import json, os, subprocess, sys

child = subprocess.run([sys.executable, "-c", "import hpc_elastic"], capture_output=True, text=True)
print(json.dumps({
    "version": sys.version_info[:2],
    "executable": sys.executable,
    "prefix": sys.prefix,
    "path": sys.path,
    "child": child.stderr.strip().splitlines()[-1:],
    "PYTHONPATH": os.environ.get("PYTHONPATH"),
    "modules": sorted(name for name in sys.modules if name in ("torch", "yaml", "pydantic", "psutil")),
}))
"""


@dataclass(frozen=True)
class Environments:
    """The interpreters of both, and the folder of the one that submits."""

    submits: Path
    trains: Path

    @property
    def folder(self) -> Path:
        return self.submits.parent.parent


def found(*versions: str) -> list[str]:
    """Those of the Pythons that this machine has."""
    return [version for version in versions if find_python(version) is not None]


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    wheel = build(REPOSITORY, tmp_path_factory.mktemp("wheel"), "wheel")
    submits = make_environment(tmp_path_factory.mktemp("submits") / "venv")
    install_wheel(submits, wheel)
    link_distributions(submits, LIGHT)
    trains = make_environment(tmp_path_factory.mktemp("trains") / "venv")
    link_all_but(trains, "hpc_elastic")
    return Environments(submits=submits, trains=trains)


@pytest.fixture
def outside(environments: Environments, door: Door) -> Door:
    """The installed command of the environment that submits, as on a login node where nothing is activated."""
    environ = {name: value for name, value in door.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return Door(door.folder, environ, command=(str(environments.submits.with_name("hpc-elastic")),))


def has_module(python: Path, name: str) -> bool:
    done = subprocess.run([python, "-c", f"import {name}"], capture_output=True, check=False, cwd="/")
    return done.returncode == 0


def look(door: Door, python: Path | str, *, exit_code: int = 0) -> dict[str, object]:
    """What rank 3 saw."""
    door.write("look.py", LOOK)
    door.write("job.yaml", f"{JOB}python: {python}\nentrypoint: {{script: look.py}}\n")
    run = door.submit("job.yaml", wait=True, exit_code=exit_code)
    assert run.result()["state"] == "SUCCEEDED", run.story()
    run.assert_nothing_left()
    run.assert_records_valid()
    seen: dict[str, object] = json.loads(run.stdout(1, 3))
    return seen


@pytest.mark.variant(of="test_workers_see_their_own_environment_alone")
def test_digits_train_in_an_environment_that_has_nothing_of_ours(environments: Environments, outside: Door) -> None:
    assert not has_module(environments.submits, "torch")
    assert has_module(environments.trains, "torch")
    assert not has_module(environments.trains, "hpc_elastic")
    outside.write(
        "job.yaml",
        f"{JOB}python: {environments.trains}\nentrypoint: {{script: {DIGITS / 'train.py'}}}\n"
        "env: {OMP_NUM_THREADS: 1}\n",
    )
    run = outside.submit("job.yaml", wait=True)
    assert run.result()["state"] == "SUCCEEDED", run.story()
    assert float(run.stdout(1, 0).split("accuracy on held-out digits: ")[1].split("%")[0]) >= 95
    run.assert_nothing_left()
    run.assert_records_valid()


@pytest.mark.variant(of="test_the_login_command_works_without_torch")
def test_every_verb_works_without_torch(outside: Door) -> None:
    outside.write("look.py", LOOK)
    outside.write("job.yaml", f"{JOB}entrypoint: {{script: look.py}}\n")
    assert "job.yaml" in outside.run("check", "job.yaml").stdout
    assert outside.run("render", "job.yaml").stdout.startswith("#!/bin/bash\n")
    assert json.loads(outside.run("schema").stdout)["properties"]
    assert outside.run("submit", "job.yaml", "--dry-run").stdout.startswith("#!/bin/bash\n")
    run = outside.submit("job.yaml", wait=True)
    assert "SUCCEEDED" in outside.run("status").stdout
    assert json.loads(outside.run("status", "--json").stdout)["state"] == "SUCCEEDED"
    assert json.loads(outside.run("logs").stdout)["PYTHONPATH"] is None
    assert run.job_id in outside.run("list").stdout
    assert "is over already" in outside.run("cancel", exit_code=5).stderr
    ran = outside.run("run", "--workers-per-node", "2", "look.py")
    assert json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("{")))


def test_workers_see_their_own_environment_alone(environments: Environments, outside: Door) -> None:
    mine = outside.folder / "my modules"
    mine.mkdir()
    outside.environ["PYTHONPATH"] = str(mine)
    seen = look(outside, environments.trains)
    assert seen["prefix"] == str(environments.trains.parent.parent)
    assert seen["child"] == ["ModuleNotFoundError: No module named 'hpc_elastic'"]
    assert seen["PYTHONPATH"] == str(mine)
    path = seen["path"]
    assert isinstance(path, list)
    assert path[:2] == [str(outside.folder), str(mine)]
    assert not [entry for entry in path if str(environments.folder) in entry]
    assert seen["modules"] == ["torch"]  # of the process that the worker is a fork of


@pytest.mark.parametrize(
    "version",
    [  # the oldest and the newest
        *found("3.10", "3.13"),
        *variants(*found("3.11", "3.12", "3.14"), of="test_workers_run_under_any_supported_python"),
    ],
)
def test_workers_run_under_any_supported_python(outside: Door, version: str) -> None:
    python = find_python(version)
    assert python is not None
    seen = look(outside, python)
    assert seen["version"] == [int(part) for part in version.split(".")]
    assert seen["child"] == ["ModuleNotFoundError: No module named 'hpc_elastic'"]


@pytest.mark.variant(of="test_workers_see_their_own_environment_alone")
def test_the_python_may_come_from_setup(environments: Environments, outside: Door) -> None:
    activate = environments.trains.with_name("activate")
    outside.write("look.py", LOOK)
    outside.write("job.yaml", f"{JOB}setup: [source {activate}]\npython: python\nentrypoint: {{script: look.py}}\n")
    run = outside.submit("job.yaml", wait=True)
    assert json.loads(run.stdout(1, 0))["prefix"] == str(environments.trains.parent.parent)


@pytest.mark.parametrize(
    "version",
    [
        *found("3.6", "3.9"),
        None,
        *variants(*found("3.8"), of="test_a_python_that_is_missing_or_too_old_ends_the_run_with_3"),
    ],
)
def test_a_python_that_is_missing_or_too_old_ends_the_run_with_3(outside: Door, version: str | None) -> None:
    python = find_python(version) if version else outside.folder / "nowhere" / "python"
    outside.write("look.py", LOOK)
    keys = f"python: {python}\nsetup: ['true']\n"  # setup might make it, so that it is submitted
    outside.write("job.yaml", f"{JOB}{keys}entrypoint: {{script: look.py}}\n")
    run = outside.submit("job.yaml", wait=True, exit_code=3)
    result = run.result()
    assert (result["state"], result["exit_code"]) == ("FAILED", 3)
    assert "the job's python is missing" in result["cause"]
    assert str(python) in result["cause"]
    said = (run.path / f"{run.job_id}.out").read_text().splitlines()
    assert len(said) == 2, said
    run.assert_records_valid()


@pytest.mark.variant(of="test_workers_see_their_own_environment_alone")
def test_the_package_works_if_it_is_installed_read_only(environments: Environments, outside: Door) -> None:
    """As root, file modes forbid nothing: there a read-only mount does."""
    folder = environments.folder
    if os.geteuid() == 0:
        if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
            pytest.skip("root may not make mounts here")
        mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        door = Door(
            outside.folder,
            outside.environ,
            command=("unshare", "--mount", "sh", "-ec", mount, str(folder), *outside.command),
        )
    else:
        subprocess.run(["chmod", "-R", "a-w", folder], check=True)
        door = outside
    try:
        look(door, environments.trains)
    finally:
        subprocess.run(["chmod", "-R", "u+w", folder], check=True)


CRASHES_ONCE = """
import os, sys
print(*sys.version_info[:2], os.environ["RANK"], os.environ["HPC_ELASTIC_ATTEMPT"], flush=True)
if os.environ["HPC_ELASTIC_ATTEMPT"] == "1" and os.environ["RANK"] == "3":
    raise ValueError("only the first time")
"""


def pairs_of_pythons() -> list[tuple[str, str]]:
    """Each Python of `make test-pythons` submits once and trains once, the newest one the oldest one and so on."""
    here = [version for version in found("3.10", "3.11", "3.12", "3.13") if _environment_of(version).exists()]
    return [(submits, trains) for submits, trains in zip(here, reversed(here), strict=True) if submits != trains]


def _environment_of(version: str) -> Path:
    return REPOSITORY / f".venv-py{version.replace('.', '')}" / "bin" / "python"


@pytest.mark.parametrize(("submits", "trains"), pairs_of_pythons() or [("3.10", "3.13")])
def test_a_run_restarts_if_submission_and_training_have_different_pythons(
    door: Door, submits: str, trains: str
) -> None:
    if not pairs_of_pythons():
        pytest.skip("there are not two Pythons that `make test-pythons` has made environments for")
    environ = {name: value for name, value in door.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    other = Door(door.folder, environ, command=(str(_environment_of(submits)), "-m", "hpc_elastic"))
    other.write("once.py", CRASHES_ONCE)
    other.write("where.sh", f"#!/bin/sh\nexec {find_python(trains)} once.py\n").chmod(0o700)
    for entrypoint in ("{script: once.py}", "{command: ./where.sh}"):
        job = JOB.replace("max_restarts: 0", "max_restarts: 1")
        other.write("job.yaml", f"{job}python: {find_python(trains)}\nentrypoint: {entrypoint}\n")
        run = other.submit("job.yaml", wait=True)
        assert run.result()["state"] == "SUCCEEDED", run.story()
        seen = [run.stdout(attempt, 3).split() for attempt in (1, 2)]
        assert seen == [[*trains.split("."), "3", attempt] for attempt in ("1", "2")]
        assert "only the first time" in Path(run.layout.stderr(1, 3)).read_text()
        run.assert_nothing_left()
        run.assert_records_valid()
