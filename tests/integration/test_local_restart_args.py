"""Scripts whose resume is an option: `entrypoint.restart_args` on this machine."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Door
from tests.tiers import variants

pytestmark = pytest.mark.local

# Saves its step, and the last rank fails once; it goes on only if an option says so, as nanoGPT does.
TRAIN = """
import argparse, os, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--init_from", default="scratch")
saved = pathlib.Path(os.environ["HPC_ELASTIC_RUN_DIR"], f"saved-{os.environ['RANK']}")
first = int(saved.read_text()) if parser.parse_args().init_from == "resume" else 0
saved.write_text(str(first + 5))
print("from step", first, flush=True)
if os.environ["RANK"] == "1" and os.environ["HPC_ELASTIC_ATTEMPT"] == "1":
    while not saved.with_name("saved-0").exists():
        pass
    os.kill(os.getpid(), 9)
"""
JOB = """
name: probe
site: local
nodes: 2
workers_per_node: 1
time: 10m
start: {start}
entrypoint: {entrypoint}
"""


@pytest.mark.parametrize(
    ("start", "entrypoint"),
    [
        ("spawn", "{script: train.py, restart_args: [--init_from=resume]}"),
        *variants(
            ("fork", "{script: train.py, restart_args: [--init_from=resume]}"),
            ("spawn", "{module: train, args: [--init_from=scratch], restart_args: [--init_from=resume]}"),
            ("spawn", "{command: ./train, restart_args: ['--init_from=${HOW}']}"),
            of="test_a_script_goes_on_after_a_kill_if_its_resume_is_an_option",
        ),
    ],
)
def test_a_script_goes_on_after_a_kill_if_its_resume_is_an_option(door: Door, start: str, entrypoint: str) -> None:
    door.write("train.py", TRAIN)
    door.write("train", '#!/bin/sh\nexec python3 train.py "$@"\n').chmod(0o700)
    text = JOB.format(start=start, entrypoint=entrypoint)
    door.write("job.yaml", f"{text}env: {{HOW: resume}}\n")
    run = door.submit("job.yaml", wait=True)
    assert [run.stdout(1, rank) for rank in range(2)] == ["from step 0\n"] * 2
    assert [run.stdout(2, rank) for rank in range(2)] == ["from step 5\n"] * 2, "every rank is told"


def test_only_the_role_that_has_them_gets_restart_arguments(door: Door) -> None:
    door.write("train.py", TRAIN)
    door.write("other.py", "import sys\nprint(sys.argv[1:], flush=True)\n")
    door.write(
        "job.yaml",
        """
name: probe
site: local
time: 10m
roles:
  - {name: other, entrypoint: {script: other.py, args: [a]}}
  - {name: trainer, entrypoint: {script: train.py, restart_args: [--init_from=resume]}}
""",
    )
    door.write("train.py", TRAIN.replace('with_name("saved-0")', 'with_name("saved-1")'))
    run = door.submit("job.yaml", wait=True)
    assert run.stdout(2, 0) == "['a']\n"
    assert run.stdout(2, 1) == "from step 5\n"
