"""launch.py finds the package by its folder, and nobody else does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.worker.conftest import Runner

PACKAGE = Path(__file__).parents[2] / "hpc_elastic"


def run_launch(*arguments: str, python: str = sys.executable, launch: Path = PACKAGE / "launch.py") -> tuple[int, str]:
    done = subprocess.run([python, str(launch), *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("-I",), ("-S", "-E")])
def test_script_imports_the_package_if_it_is_installed_nowhere(runner: Runner, options: tuple[str, ...]) -> None:
    """-S leaves site-packages out, and with it the editable installation of the tests."""
    script = str(
        runner.write("script.py", "import sys, hpc_elastic.worker; print(hpc_elastic.worker.__file__, sys.path)")
    )
    outcome = runner.run_worker("--script", script, python=(sys.executable, *options))
    assert outcome.stdout.startswith(str(PACKAGE / "worker" / "__init__.py"))
    assert str(PACKAGE) not in outcome.stdout.split()[1:]


@pytest.mark.long
def test_script_does_not_see_what_is_installed_beside_the_package(runner: Runner) -> None:
    neighbours = runner.directory / "site-packages"
    neighbours.mkdir()
    (neighbours / "hpc_elastic").symlink_to(PACKAGE)
    runner.write("site-packages/neighbour_of_the_package.py", "")
    script = runner.write("elsewhere/script.py", "import hpc_elastic, neighbour_of_the_package")
    launch = str(neighbours / "hpc_elastic" / "launch.py")
    command = [sys.executable, launch, "hpc_elastic.worker.bootstrap", "--parent", "0", "--script", str(script)]
    outcome = runner.run(command)
    assert outcome.stderr.endswith("ModuleNotFoundError: No module named 'neighbour_of_the_package'\n")


@pytest.mark.long
def test_children_of_a_script_do_not_see_the_package(runner: Runner) -> None:
    child = "import importlib.util; print(importlib.util.find_spec('hpc_elastic'))"
    outcome = runner.run_script(f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {child!r}])")
    assert outcome.stdout == "None\n"


@pytest.mark.parametrize("arguments", [(), ("os",), ("hpc_elastic",)])
def test_launch_rejects_what_is_no_module_of_the_package(arguments: tuple[str, ...]) -> None:
    exit_code, output = run_launch(*arguments)
    assert exit_code == 1
    assert output.startswith("usage: ")


def test_launch_names_the_file_if_the_package_is_incomplete(tmp_path: Path) -> None:
    launch = Path(shutil.copy(PACKAGE / "launch.py", tmp_path))
    exit_code, output = run_launch("hpc_elastic.worker.bootstrap", launch=launch)
    assert exit_code != 0
    assert str(tmp_path / "__init__.py") in output


def test_launch_rejects_an_old_python() -> None:
    versions = Path(os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))) / "versions"
    old = [str(path / "bin" / "python") for pattern in ("3.6.*", "3.9.*") for path in versions.glob(pattern)]
    if not old:
        pytest.skip("no Python 3.6 or 3.9 below PYENV_ROOT")
    for python in old:
        exit_code, output = run_launch("hpc_elastic.worker.bootstrap", python=python)
        assert exit_code == 3
        assert f"at {python}, expected 3.10 or later" in output
