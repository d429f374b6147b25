"""Runs on this machine that keep the code they were submitted with, and runs whose script changes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Door, Run

pytestmark = pytest.mark.local

JOB = """
nodes: 1
workers_per_node: 1
snapshot: true
entrypoint: {script: train.py, args: ["${lr}"]}
setup: [test -f not_tracked.txt]
"""
SCRIPT = """
import os, pathlib, helper
print(helper.WORD, os.getcwd(), flush=True)
while not pathlib.Path(os.environ["GO"]).exists():
    pass
"""


@pytest.fixture
def checkout(door: Door) -> Path:
    """The user's folder as a checkout of git."""
    door.write("train.py", SCRIPT)
    door.write("helper.py", "WORD = 'submitted'\n")
    subprocess.run(["git", "-C", door.folder, "init", "-q"], check=True)
    subprocess.run(["git", "-C", door.folder, "add", "train.py", "helper.py"], check=True)
    door.write("not_tracked.txt", "")
    door.write("job.yaml", JOB.replace("${lr}", "1"))
    return door.folder


def test_a_run_keeps_the_code_that_it_was_submitted_with(door: Door, checkout: Path) -> None:
    door.environ["GO"] = str(checkout / "go")
    run = door.submit("job.yaml", "--site", "local")
    door.write("helper.py", "WORD = 'edited later'\n")
    door.write("go", "")
    assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()
    assert run.stdout(1, 0) == f"submitted {run.path}/snapshot\n"


def test_the_runs_of_an_array_share_one_snapshot(door: Door, checkout: Path) -> None:
    door.environ["GO"] = str(checkout)
    door.write("job.yaml", JOB)
    done = door.run(
        "submit", "job.yaml", "--site", "local", "--array", "lr=1,2", "--json", "--wait", "--set", "start=spawn"
    )
    array = Path(json.loads(done.stdout.splitlines()[0])["run_dir"])
    assert sorted(path.name for path in (array / "snapshot").glob("*.py")) == ["helper.py", "train.py"]
    for number in ("0", "1"):
        assert Run.at(array / number).stdout(1, 0) == f"submitted {array}/snapshot\n"
        assert not (array / number / "snapshot").exists()


def test_a_snapshot_of_no_checkout_is_refused_and_leaves_nothing(door: Door) -> None:
    door.write("train.py", "")
    door.write("job.yaml", JOB.replace("${lr}", "1"))
    done = door.run("submit", "job.yaml", "--site", "local", exit_code=3)
    assert f"snapshot: {door.folder} is no checkout of git" in done.stderr
    assert not (door.folder / "hpc-elastic-runs").exists()
