"""A failure that comes again and again, on the real Slurm: the budget, the records, the exit codes."""

from __future__ import annotations

import time

import pytest

from tests.integration.conftest import Door
from tests.integration.slurm_jobs import agent_outputs, assert_left_slurm, assert_over, script_output, write_job
from tests.slurm_sandbox.cluster import Cluster

pytestmark = pytest.mark.slurm

# Rank 3 raises as soon as every rank of its attempt has said who it is.
RAISES = """
import glob, os, signal, time
attempt = os.environ["HPC_ELASTIC_ATTEMPT"]
print("restarts", os.environ["TORCHELASTIC_RESTART_COUNT"], "of", os.environ["TORCHELASTIC_MAX_RESTARTS"], flush=True)
open(f"started-{attempt}-{os.environ['RANK']}", "w").close()
if os.environ["RANK"] == "3":
    while len(glob.glob(f"started-{attempt}-*")) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.02)
    raise ValueError("no such shard: 17")
signal.pause()
"""


@pytest.mark.variant(of="test_status_and_logs_tell_the_cause_of_a_failed_run")
def test_a_rank_that_always_raises_uses_up_max_restarts(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, RAISES, more="restart: {max_restarts: 2}")
    run = slurm_door.submit("job.yaml", wait=True, exit_code=1)
    returned = time.time()
    result = assert_over(run, "FAILED", 1)
    # Bounded loosely here; benchmarks/ measures it.
    assert returned - run.path.joinpath("result.json").stat().st_mtime < 2
    assert (result["reason"], result["attempts"], result["restarts"]) == ("restarts_used_up", 3, 2)
    cause = "rank 3 on node2 failed with exit code 1: ValueError: no such shard: 17"
    assert result["cause"] == f"{cause}; all 2 restarts of max_restarts are used up"
    assert list(result["failures"]) == ["3"]
    assert run.attempts() == [1, 2, 3]
    for attempt in run.attempts():
        said = [run.stdout(attempt, rank) for rank in range(8)]
        assert said == [f"restarts {attempt - 1} of 2\n"] * 8
        error = run.read(run.layout.error(attempt, 3))
        assert (error["class"], error["attempt"], error["rank"], error["node"]) == ("exception", attempt, 3, "node2")
        assert "ValueError: no such shard: 17" in error["message"]["extraInfo"]["py_callstack"]
        assert [path.parent.name for path in run.path.glob(f"attempts/{attempt:04}/ranks/*/error.json")] == ["00003"]

    assert_left_slurm(slurm, run, "FAILED", "1:0")
    assert run.path.joinpath("exit_code").read_text() == "1\n"
    output = script_output(run)
    assert str(run.path) in output
    for attempt in run.attempts():
        assert output.count(f"attempt {attempt}: 8 ranks on 4 nodes") == 1, output
    assert result["cause"] in output
    assert [f"node{node + 1}: task {node}: Exited with exit code 1" in output for node in range(4)] == [True] * 4, (
        output
    )
    assert "Traceback" not in agent_outputs(run)


@pytest.mark.mirrored
def test_status_and_logs_tell_the_cause_of_a_failed_run(slurm_door: Door) -> None:
    write_job(slurm_door, RAISES, nodes="2", more="restart: {max_restarts: 0}")
    run = slurm_door.submit("job.yaml", wait=True, exit_code=1)
    shown = " ".join(slurm_door.run("status", run.job_id, exit_code=None).stdout.split())
    assert "FAILED, exit code 1" in shown
    assert "rank 3 on node2 failed with exit code 1: ValueError: no such shard: 17" in shown
    assert "FAILED" in slurm_door.run("list").stdout
    run.assert_nothing_left()
