"""What submitit's job says of a run that restarted, from a run directory made without a run."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.integrations.submitit.job import HpcElasticJob
from hpc_elastic.integrations.submitit.paths import RunPaths, link_run
from hpc_elastic.rundir.records import RunState
from tests.observe.builders import RunBuilder
from tests.observe.failed_runs import CAUSE, TRACEBACK, failure

_NUMBERS = count(5001)  # one watcher of all jobs of the process knows a job by its id


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    run = RunBuilder(tmp_path / "run").submit(str(next(_NUMBERS))).allocate().open_attempt(1)
    return run.open_attempt(2, reason="rank 0 on node1 was killed by SIGKILL", restarts=1)


def job_of(run: RunBuilder, tasks: tuple[int, ...] = (0,)) -> HpcElasticJob[Any]:
    folder = Path(run.layout.root).parent / "log"
    paths = RunPaths(folder, run.job_id, 0, layout=run.layout, attempt=2)
    link_run(paths, run.layout, str(folder / "function.pkl"))
    return HpcElasticJob(folder, run.job_id, tasks)


def test_output_of_a_job_that_restarted_is_that_of_all_attempts(run: RunBuilder) -> None:
    run.write_rank(1, 0, "epoch 1\n", "a warning\n").write_rank(2, 0, "epoch 2\n", "")
    job = job_of(run)
    assert (job.stdout(), job.stderr()) == ("epoch 1\nepoch 2\n", "a warning\n")


def test_output_of_an_attempt_in_which_a_rank_wrote_nothing_is_left_out(run: RunBuilder) -> None:
    run.write_rank(1, 0, "epoch 1\n").write_rank(2, 1, "of another rank\n")
    assert job_of(run).stdout() == "epoch 1\n"


def test_output_begins_with_what_was_cut_off_for_its_size(run: RunBuilder) -> None:
    run.write_rank(2, 0, "new\n")
    Path(run.layout.earlier(run.layout.stdout(2, 0))).write_text("old\n")
    assert job_of(run).stdout() == "old\nnew\n"


def test_output_that_is_no_text_is_shown_all_the_same(run: RunBuilder) -> None:
    run.write_rank(2, 0, "")
    Path(run.layout.stdout(2, 0)).write_bytes(b"\xff\n")
    assert job_of(run).stdout() == "\ufffd\n"


def test_output_is_none_if_nothing_was_written_yet(run: RunBuilder) -> None:
    assert job_of(run).stdout() is None


def test_error_of_a_job_has_the_traceback_of_the_rank_in_the_root_cause(run: RunBuilder) -> None:
    run.write_error(2, 3, callstack=TRACEBACK).write_error(2, 0, message="closed", callstack="Traceback of a victim")
    failures = {str(rank): failure(run, rank, message="x", at=90 - rank) for rank in (3, 0)}
    failures = {
        rank: replace(each, error_file=run.layout.error(2, each.rank), timestamp=each.timestamp + 10 * each.rank)
        for rank, each in failures.items()
    }
    run.end(RunState.FAILED, exit_code=1, reason="restarts_used_up", failures=failures, root_cause=CAUSE)
    error = job_of(run, tasks=(0, 1, 2, 3)).exception()
    assert "ValueError: no such batch" in str(error)
    assert "victim" not in str(error)


def test_paths_are_those_of_the_nodes_log_where_its_ranks_share_one(run: RunBuilder) -> None:
    plan = Path(run.layout.plan)
    record = json.loads(plan.read_text())
    plan.write_text(json.dumps(record | {"logs": {**record["logs"], "per": "node"}}))
    Path(run.layout.node_log(2, "node1")).parent.mkdir(exist_ok=True)
    Path(run.layout.node_log(2, "node1")).write_text("2026-01-02T03:06:05.000000Z 0 out step 1\n")
    job = job_of(run)
    assert str(job.paths.stdout) == str(job.paths.stderr) == run.layout.node_log(2, "node1")
    assert job.stdout() == "step 1\n"
