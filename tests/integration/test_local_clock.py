"""A node's clock that is set while a run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Door

pytestmark = pytest.mark.local

STEP_S = 108_000
SCRIPT = """
import os, select
if os.environ["HPC_ELASTIC_ATTEMPT"] == "1":
    with open("clock.new", "w") as file:
        file.write("+30h\\n")
    os.rename("clock.new", "clock")
    with open(os.path.join(os.environ["HPC_ELASTIC_RUN_DIR"], "nodes/local0/events.jsonl")) as events:
        told = ""
        while "node.clock_set" not in told:
            told += events.read()
            select.select([], [], [], 0.05)  # time.sleep fails there
    raise ValueError("fails once")
"""


@pytest.fixture
def faketime() -> Iterator[Path]:
    """The library that answers for a clock with what a file says; a process that is killed leaves its shared memory."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        pytest.skip("there is no libfaketime")
    before = set(shared_memory())
    yield found[0]
    for path in set(shared_memory()) - before:
        path.unlink()


def shared_memory() -> Iterator[Path]:
    yield from Path("/dev/shm").glob("faketime_shm_*")
    yield from Path("/dev/shm").glob("sem.faketime_sem_*")


def test_a_clock_that_is_set_amid_a_run_is_noted_and_no_duration_has_the_step(door: Door, faketime: Path) -> None:
    clock = door.write("clock", "+0\n")
    variables = f"FAKETIME_TIMESTAMP_FILE={clock} FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1"
    door.write("train.py", SCRIPT)
    door.write(
        "job.yaml",
        "name: probe\nsite: local\nworkers_per_node: 1\nentrypoint: {script: train.py}\n"
        f"setup: ['export LD_PRELOAD={faketime} {variables}']\n",
    )
    run = door.submit("job.yaml", wait=True)
    assert run.attempts() == [1, 2]
    status = json.loads(door.run("status", run.job_id, "--json").stdout)
    (step,) = status["clock_steps"]
    assert (step["node"], round(step["step_s"])) == ("local0", STEP_S)
    assert step["message"] == "the clock of local0 was set forward by 1d6h"
    assert sum(status["useful_time"]["seconds"].values()) < STEP_S / 10
    for verb in ("status", "explain", "report"):
        said = door.run(verb, run.job_id, *(["-o", "-"] if verb == "report" else [])).stdout
        assert "1 d 6 h" not in said, verb
    run.assert_records_valid()
