"""The file system fails once, at each operation of an agent in turn: the run goes on as if it had not."""

from __future__ import annotations

import errno
import json
import shutil
import sys

import pytest
from _pytest.mark.structures import ParameterSet

from hpc_elastic.rundir.layout import RunLayout
from tests.integration import faulty_disk
from tests.integration.conftest import Door, Run
from tests.slurm_sandbox.cluster import wait_until

pytestmark = pytest.mark.local

# The first attempt fails, so that there is a restart: a failure's record, two claims, and all records of success.
JOB = """
nodes: 2
workers_per_node: 1
restart: {max_restarts: 1}
python: ./python
entrypoint: {script: train.py}
"""
SCRIPT = """
import os, sys, time
if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) == 0:
    sys.exit(1) if os.environ["RANK"] == "0" else time.sleep(600)
"""
FAILS_WHEN_TOLD = """
import os, sys, time
while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.path.exists({told!r}):
        sys.exit(1)
    time.sleep(0.02)
"""
PYTHON = """#!/bin/bash
case "$*" in
*hpc_elastic.agent.main*) exec {python} {faulty} "$@" ;;
*) exec {python} "$@" ;;
esac
"""
HEAD, MEMBER = "local0", "local1"
BEFORE, AFTER = False, True


def fault(node: str, operation: str, path: str, is_after: bool = BEFORE) -> ParameterSet:
    name = f"{node}-{operation}-{path}{'-after' if is_after else ''}"
    return pytest.param(node, operation, path, is_after, id=name.replace("*", "any"))


FAULTS = [
    fault(HEAD, "link", "attempts/0002/claim.json", AFTER),
    fault(HEAD, "link", "result.json"),
]
MORE_FAULTS = [
    fault(HEAD, "link", "attempts/0001/claim.json"),
    fault(MEMBER, "replace", "attempts/0002/nodes/local1.json"),
    fault(HEAD, "open", "plan.json"),
    fault(MEMBER, "open", "plan.json"),
    fault(HEAD, "open", "secret"),
    fault(HEAD, "scandir", "allocations"),
    fault(HEAD, "scandir", "attempts"),
    fault(HEAD, "link", "allocations/0001.json"),
    fault(HEAD, "link", "allocations/0001.json", AFTER),
    fault(HEAD, "fsync", "allocations", AFTER),
    fault(HEAD, "write", "attempts/0001/..world*"),
    fault(HEAD, "link", "attempts/0001/claim.json", AFTER),
    fault(HEAD, "fsync", "attempts/0001", AFTER),
    fault(HEAD, "replace", "attempts/0001/world.json"),
    fault(HEAD, "replace", "attempts/0001/world.json", AFTER),
    fault(HEAD, "link", "attempts/0002/claim.json"),
    fault(HEAD, "link", "result.json", AFTER),
    fault(HEAD, "replace", "exit_code"),
    fault(HEAD, "replace", "exit_code", AFTER),
    fault(HEAD, "open", "result.json"),
    fault(HEAD, "open", "requests.jsonl"),
    fault(HEAD, "replace", "attempts/0001/nodes/local0.json"),
    fault(MEMBER, "replace", "attempts/0001/nodes/local1.json", AFTER),
    fault(MEMBER, "mkdir", "attempts/0002/ranks/00001"),
    fault(MEMBER, "open", "attempts/0002/ranks/00001/stdout.log"),
    fault(HEAD, "open", "attempts/0001/ranks/00000/error.json"),
    fault(HEAD, "write", "nodes/local0/events.jsonl"),
    fault(HEAD, "unlink", "attempts/0001/*.tmp"),
]


def as_variant(fault: ParameterSet) -> ParameterSet:
    mark = pytest.mark.variant(of="test_one_refusal_of_the_file_system_ends_nothing")
    return pytest.param(*fault.values, id=fault.id, marks=mark)


def play(door: Door, **fault: object) -> None:
    """Runs the job with one fault and looks at all that it has left."""
    faulty = shutil.copy(faulty_disk.__file__, door.folder / "faulty_disk.py")
    door.write("python", PYTHON.format(python=sys.executable, faulty=faulty)).chmod(0o700)
    door.write("train.py", SCRIPT)
    door.write("job.yaml", JOB)
    run_dir = door.folder / "run"
    door.write("fault.json", json.dumps({**fault, "errno": errno.EIO, "root": str(run_dir)}))
    run = door.submit("job.yaml", "--site", "local", "--run-dir", str(run_dir), wait=True, exit_code=0)
    result = run.result()
    found = (result["state"], result["attempts"], result["restarts"], len(result["nodes"]))
    assert (door.folder / "failed").exists(), "the fault did not come"
    assert found == ("SUCCEEDED", 2, 1, 2), run.story()
    assert (run_dir / "exit_code").read_text() == "0\n"
    assert "Traceback" not in run.story()
    run.assert_records_valid()


@pytest.mark.parametrize(("node", "operation", "path", "is_after"), [*FAULTS, *map(as_variant, MORE_FAULTS)])
def test_one_refusal_of_the_file_system_ends_nothing(
    door: Door, node: str, operation: str, path: str, is_after: bool
) -> None:
    play(door, node=node, operation=operation, path=path, after=is_after)


def test_a_run_directory_that_is_moved_is_not_made_again_and_the_run_goes_on_when_it_is_back(door: Door) -> None:
    door.write("train.py", FAILS_WHEN_TOLD.format(told=str(door.folder / "told")))
    door.write("job.yaml", JOB.replace("nodes: 2", "nodes: 1").replace("python: ./python\n", ""))
    run = door.submit("job.yaml", "--site", "local", "--run-dir", str(door.folder / "run"))
    run.wait_until_started()
    moved = door.folder / "moved"
    run.path.rename(moved)
    (door.folder / "told").touch()
    wait_until(
        lambda: "is gone: it was moved or removed; trying again" in (moved / "agents" / "local0.out").read_text(),
        "the agent misses its directory",
        within_s=30,
        otherwise=Run(job_id=run.job_id, layout=RunLayout(moved)).story,
    )
    assert not run.path.exists()
    moved.rename(run.path)
    result = run.wait_until_over()
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 2), run.story()
