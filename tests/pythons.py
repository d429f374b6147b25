"""Runs the tests that need no torch under each supported Python of this machine, and prints which are missing.

    python -m tests.pythons [--only 3.10 ...] [options of pytest]

Each Python has an environment of its own, `.venv-py310` and so on: what the tests need, by `constraints.txt`, but no
torch, whose plain build is gigabytes. The exit code is 0 if all that are here have passed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.integration.environments import find_python

REPOSITORY = Path(__file__).parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
SELECTION = "not slurm and not local and not long and not variant"  # as `make check`
# What the distribution requires for its tests, but torch. It runs in the environment, where the distribution is.
REQUIREMENTS = """
import importlib.metadata
for line in importlib.metadata.requires("hpc-elastic"):
    requirement, _, marker = line.partition(";")
    if marker.strip().replace('"', "'") in ("", "extra == 'test'") and not requirement.startswith("torch"):
        print(requirement.strip())
"""


def main(arguments: Sequence[str]) -> int:
    """Runs them one after the other; 1 if one has failed, or none is here."""
    parser = argparse.ArgumentParser(prog="python -m tests.pythons")
    parser.add_argument("--only", nargs="+", choices=PYTHONS, default=PYTHONS)
    chosen, options = parser.parse_known_args(arguments)
    outcomes = {version: _run(version, options) for version in chosen.only}
    for version, outcome in outcomes.items():
        print(f"Python {version}: {outcome or 'passed'}", flush=True)
    tried = [outcome for outcome in outcomes.values() if outcome != MISSING]
    return 0 if tried and not any(tried) else 1


MISSING = "missing: no such interpreter on PATH, and none of pyenv's"


def _run(version: str, options: Sequence[str]) -> str:
    """What went wrong under one Python; empty if nothing did."""
    interpreter = find_python(version)
    if interpreter is None:
        return MISSING
    try:
        python = _make_environment(version, interpreter)
    except subprocess.CalledProcessError as error:
        return f"no environment could be made with {interpreter}: {error}"
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-m", SELECTION]
    status = subprocess.run([*command, "-p", "no:cacheprovider", *options], cwd=REPOSITORY, check=False).returncode
    if not status and any(option.startswith("--record-tested") for option in options):
        subprocess.run(
            [python, "-m", "tests.tested_on"], cwd=REPOSITORY, check=True
        )  # a test compares README and record
    return f"failed ({status})" if status else ""


def _make_environment(version: str, interpreter: Path) -> Path:
    """Makes the environment, unless it is newer than what it is made from; returns its interpreter."""
    folder = REPOSITORY / f".venv-py{version.replace('.', '')}"
    python, installed = folder / "bin" / "python", folder / ".installed"
    made_from = (REPOSITORY / "constraints.txt", REPOSITORY / "pyproject.toml")
    if installed.exists() and installed.stat().st_mtime >= max(path.stat().st_mtime for path in made_from):
        return python
    subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt"]
    subprocess.run([*pip, "--no-deps", "--editable", "."], cwd=REPOSITORY, check=True)
    listed = subprocess.run([python, "-c", REQUIREMENTS], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    subprocess.run([*pip, *listed.stdout.split("\n")[:-1]], cwd=REPOSITORY, check=True)
    installed.touch()
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
