"""Explanations of runs: whole texts for each kind of failure, and what is made of directories that are half there.

`HPC_ELASTIC_WRITE_GOLDEN=1 python -m pytest tests/observe/test_explain.py` writes the texts anew, for a look at the
difference with git: read them aloud.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hpc_elastic.codec import to_json
from hpc_elastic.errors import UsageError
from hpc_elastic.failures.flight_recorder import Collective, RankCollectives
from hpc_elastic.observe.explain import Explanation, explain, explanation_to_json
from hpc_elastic.observe.explain_evidence import excerpt
from hpc_elastic.observe.explain_reader import MOST_ERROR_FILES, MOST_PROBED, read_explain_facts
from hpc_elastic.observe.facts import FactReader
from hpc_elastic.observe.present_explanation import plain_explanation, rich_explanation
from hpc_elastic.observe.snapshot import make_snapshot, take_tolerant_snapshot
from hpc_elastic.printable import printable
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import RunState
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from tests.nfs_client import NfsClient
from tests.observe.builders import RunBuilder
from tests.observe.failed_runs import BEGAN_S, CAUSE, KINDS, LATE, LATER, LINE, READS, TRACEBACK, WAITS, failure, start
from tests.record_schemas import assert_valid

GOLDEN = Path(__file__).parent.parent / "golden" / "explain"


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def explained(layout: RunLayout, attempt: int | None = None) -> Explanation:
    return explain(read_explain_facts(layout, take_tolerant_snapshot(layout), attempt), BEGAN_S + 7200)


@pytest.mark.parametrize("kind", KINDS)
def test_the_explanation_is_the_golden_one(kind: str, tmp_path: Path) -> None:
    run = KINDS[kind](tmp_path / "run")
    text = plain_explanation(explained(run.layout), 80).replace(str(tmp_path), "/runs") + "\n"
    if os.environ.get("HPC_ELASTIC_WRITE_GOLDEN") == "1":
        (GOLDEN / f"{kind}.txt").write_text(text, encoding="utf-8")
    assert text == (GOLDEN / f"{kind}.txt").read_text(encoding="utf-8")


def test_every_golden_explanation_is_made_by_a_test() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [40, 60, 200])
def test_text_fits_its_width_apart_from_paths_commands_and_evidence(kind: str, width: int, tmp_path: Path) -> None:
    text = plain_explanation(explained(KINDS[kind](tmp_path / "run").layout), width)
    free = (str(tmp_path), "hpc-elastic ", "scontrol ")
    lines = [line for line in text.splitlines() if not any(word in line for word in free)]
    assert all(len(line) <= width for line in lines if not line.startswith(("    ", " " * 12)))
    assert text.isprintable() or set(text) - set(text.replace("\n", "")) == {"\n"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_terminal_draws_it_without_a_control_of_the_workers(kind: str, tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=60, no_color=True, color_system=None, legacy_windows=False)
    console.print(rich_explanation(explained(KINDS[kind](tmp_path / "run").layout)))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 60
    assert text.replace("\n", "").isprintable()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_json_is_valid_by_its_schema(kind: str, tmp_path: Path) -> None:
    data = json.loads(json.dumps(explanation_to_json(explained(KINDS[kind](tmp_path / "run").layout))))
    assert_valid(data, "explain --json")
    assert next(iter(data)) == "format_version"


def test_an_attempt_that_is_asked_for_is_explained(tmp_path: Path) -> None:
    run = KINDS["exception"](tmp_path / "run")
    first = explained(run.layout, 1)
    assert (first.attempt, first.cause, first.rank, first.frame) == (1, LINE, 3, "train.py:88 in step")
    assert first.next[0] == "hpc-elastic logs 42 --rank 3 --attempt 1"
    with pytest.raises(UsageError, match=r"there is no attempt 3: .* has attempts 1 to 2"):
        explained(run.layout, 3)


def test_an_attempt_is_refused_if_there_is_none_yet(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no attempt yet"):
        explained(KINDS["pending"](tmp_path / "run").layout, 1)


def test_latest_attempt_of_a_run_that_goes_on_has_not_failed(tmp_path: Path) -> None:
    run = KINDS["out_of_memory"](tmp_path / "run")
    latest = explained(run.layout, 2)
    assert latest.cause == "nothing is known to have failed in attempt 2, which still runs"
    assert (latest.rank, latest.failure_class, latest.history[-1].cause) == (None, None, "")


def test_an_attempt_that_has_ended_is_explained_before_the_next_one_is_open(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    run.end_node(1, "node2", failure(run, 2, "exit_code", "exit code 3", at=75)).fail_attempt(1, "rank 2 failed so")
    found = explained(run.layout)
    assert (found.attempt, found.rank, found.cause) == (1, 2, "rank 2 failed so")
    text = plain_explanation(found, 80)
    assert "attempt 1 has ended, and the next one is not open yet" in text
    assert "runs" not in text


def test_a_run_that_waits_to_start_again_does_not_run(tmp_path: Path) -> None:
    found = explained(start(tmp_path / "run").end_allocation(1, "preempted").layout)
    assert found.cause == "Slurm took the job's nodes for another job"
    assert "runs" not in plain_explanation(found, 80)


def test_the_explanation_of_a_run_that_was_cancelled_before_its_start_names_no_logs(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().end(RunState.CANCELLED, exit_code=10, reason="stop_requested")
    assert [line for line in explained(run.layout).next if "logs" in line] == []


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_node_is_left_out_only_where_others_have_begun(has_begun: bool, tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate(nodes=("node1", "node2", "node3"))
    run.note("node1", "node.left_out", "node3", attempt=0, reason="cannot take part: no /data")
    if has_begun:
        run.open_attempt(1)
    run.end(RunState.FAILED, exit_code=6, reason="nodes_missing")
    told = " ".join(plain_explanation(explained(run.layout), 80).split())
    assert ("the others began without node3: cannot take part: no /data" in told) == has_begun


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ValueError: the loss is nan\rtry again", "ValueError: the loss is nan\rtry again"),
        (" 10%|#\r 50%|##\r 100%|###\r", " 100%|###"),
        ("\r 50%|##", " 50%|##"),
        ("a line of Windows\r", "a line of Windows"),
    ],
)
def test_evidence_is_without_what_a_progress_bar_has_overwritten_and_with_all_of_a_message(
    text: str, line: str
) -> None:
    (found,) = excerpt("the end", "stderr.log", text)
    assert found.lines == (line,)


LAUNCHER = "\n\n".join(
    ["starting", "[rank1]: Traceback", "[rank1]: ValueError: no", *(f"summary {n}" for n in range(12))]
)


def with_output(root: Path, failure_class: str, message: str, stdout: str, stderr: str) -> Explanation:
    """A run of which rank 2 failed so, as a command without an error file of its own."""
    run = start(root).write_rank(1, 2, stdout, stderr)
    run.write_error(1, 2, failure_class=failure_class, message=message)
    run.end_node(1, "node2", failure(run, 2, failure_class, message, at=75)).fail_attempt(1, "rank 2 failed")
    return explained(run.layout)


def test_what_a_launcher_says_after_the_traceback_does_not_hide_it(tmp_path: Path) -> None:
    (found,) = with_output(tmp_path / "run", "exception", "ValueError: no", "", LAUNCHER).excerpts
    assert found.title == "a part of rank 2's standard error"
    assert found.lines == ("starting", "[rank1]: Traceback", "[rank1]: ValueError: no")


def test_the_end_of_an_output_is_shown_of_a_script_that_exits(tmp_path: Path) -> None:
    text = "exit code 3 means no data\n" + "more\n" * 12
    (found,) = with_output(tmp_path / "run", "exit_code", "exit code 3", "printed", text).excerpts
    assert (found.title, found.lines[0]) == ("the end of rank 2's standard error", "more")


def test_what_a_script_printed_is_shown_if_it_wrote_nothing_else(tmp_path: Path) -> None:
    (found,) = with_output(tmp_path / "run", "exit_code", "exit code 3", "step 1\nloss is nan\n", "").excerpts
    assert (found.title, found.lines) == ("the end of rank 2's standard output", ("step 1", "loss is nan"))


def test_a_node_that_was_lost_is_named_before_the_next_attempt_is_open(tmp_path: Path) -> None:
    run = start(tmp_path / "run").note("node1", "node.lost", "node2", attempt=1).fail_attempt(1, "node2 was lost")
    assert (explained(run.layout).lost_nodes, explained(run.layout).failure_class) == (("node2",), "node_lost")


def test_a_node_that_was_lost_is_told_though_no_attempt_was_given_up_for_it_yet(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    assert explained(run.layout).cause == "nothing has failed: attempt 1 runs"
    run.note("node1", "node.lost", "node2", attempt=1)
    assert explained(run.layout).cause.startswith("1 node (node2) of attempt 1 was lost; the others wait")


def test_a_run_whose_job_has_just_ended_is_not_said_to_run(tmp_path: Path) -> None:
    """For a minute its agents may still write the result; until then the attempt is the latest one, and open."""
    run = start(tmp_path / "run").note("node1", "node.lost", "node2", attempt=1)
    ended = JobStatus(job_id="42", state=JobState.FAILED, native_state="FAILED")
    snapshot = make_snapshot(FactReader(run.layout).read(), ended)
    found = explain(read_explain_facts(run.layout, snapshot), BEGAN_S + 7200)
    assert found.cause == "the job has ended (FAILED); its result is not there yet"
    assert (found.notes, found.advice) == ((), ("ask again in a minute: by then it is known how the run ended",))
    assert "still runs" not in plain_explanation(found, 80)


def test_an_earlier_attempt_of_a_run_whose_job_has_just_ended_keeps_its_cause(tmp_path: Path) -> None:
    run = start(tmp_path / "run").open_attempt(2, reason="rank 1 failed")
    ended = JobStatus(job_id="42", state=JobState.FAILED, native_state="FAILED")
    snapshot = make_snapshot(FactReader(run.layout).read(), ended)
    found = explain(read_explain_facts(run.layout, snapshot), BEGAN_S + 7200)
    assert (found.cause, found.notes) == ("rank 1 failed", ("the job has ended (FAILED); its result is not there yet",))
    assert plain_explanation(found, 80).splitlines()[1] == "about     attempt 1 of 2"


def test_a_node_that_only_a_head_lost_that_gave_its_claim_up_is_not_lost(tmp_path: Path) -> None:
    run = start(tmp_path / "run").allocate(2, node="node2", restart_count=0)
    run.open_attempt(2, nodes=("node2", "node1"), allocation=2).note("node1", "node.lost", "node2", attempt=2)
    run.note("node2", "node.lost", "node1", attempt=2, allocation=2)
    run.open_attempt(3, nodes=("node2", "node3"), node_losses=1, allocation=2)
    assert explained(run.layout, 2).lost_nodes == ("node1",)


def test_failures_come_from_the_nodes_records_if_the_result_has_none(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    run.end_node(1, "node1", failure(run, 0, "peer_lost", "reset", at=60))
    run.end_node(1, "node2", failure(run, 2, "exit_code", "exit code 3", at=75))
    run.end(RunState.UNKNOWN, exit_code=7, reason="no_result", cause="the job ended", time=LATE)
    found = explained(run.layout)
    assert (found.rank, found.node, found.is_guess) == (2, "node2", True)
    assert (found.failed, found.victims, found.stopped) == ("2", "0", "1,3")


def test_the_culprit_is_found_on_a_late_node_of_a_slow_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search was over after 0.6 s, and a victim on an early node was taken for the culprit."""
    run = start(tmp_path / "run")
    for number in range(70):
        run.end_node(1, f"node{number:03d}", failure(run, number, "peer_lost", "connection closed", at=70))
    run.end_node(1, "node999", failure(run, 999, "exception", "ValueError: no", at=75))
    run.end(RunState.UNKNOWN, exit_code=7, reason="no_result", cause="the job ended", time=LATE)
    ticks = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: 0.01 * next(ticks))  # each look takes 10 ms
    assert explained(run.layout).rank == 999


def test_no_error_file_is_opened_but_that_of_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = KINDS["exception"](tmp_path / "run")
    for rank in (0, 1, 2):
        os.mkfifo(_made(run.layout.error(2, rank)))  # to open one of these would block, or is refused
        os.chmod(run.layout.error(2, rank), 0)
    assert explained(run.layout).notes == ()


def large(run: RunBuilder, ranks: int) -> RunBuilder:
    for attempt in store.list_numbers(run.layout.attempts):
        for rank in range(ranks):
            os.makedirs(run.layout.rank(attempt, rank), exist_ok=True)
    return run


@pytest.mark.parametrize("kind", ["exception", "stalled"])
def test_a_run_without_flight_records_is_asked_for_those_of_some_ranks(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for those of all ranks: 10 s of a run of 10,000 where the file server takes 1 ms each time."""
    run, asked = large(KINDS[kind](tmp_path / "run"), 120), []
    really_stat = os.stat

    def stat(path: str, **more: Any) -> os.stat_result:
        asked.append(str(path))
        return really_stat(path, **more)

    monkeypatch.setattr(os, "stat", stat)
    explained(run.layout)
    records = [path for path in asked if path.endswith("collectives.json")]
    assert len(records) == len(set(records)) == MOST_PROBED


def test_the_error_file_is_read_that_an_nfs_client_had_looked_for_before_the_rank_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = NfsClient(str(tmp_path), monkeypatch)
    with client.written_elsewhere():
        run = KINDS["exception"](tmp_path / "run")
        error = Path(run.layout.error(2, 3))
        content = error.read_bytes()
        error.unlink()
    assert not error.exists()
    with client.written_elsewhere():
        error.write_bytes(content)
    found = explained(run.layout)
    assert str(error) in found.files
    assert any(TRACEBACK.splitlines()[-1] in each.lines for each in found.excerpts)


def test_flight_records_are_read_though_some_ranks_have_none(tmp_path: Path) -> None:
    run = large(KINDS["stalled"](tmp_path / "run"), 120)
    waits = (Collective(group="default_pg", number=7, operation="all_reduce", frame="train.py:88"),)
    for rank in (2, 70, 119):
        record = RankCollectives(rank=rank, called={"default_pg": 7 if rank == 2 else 6}, pending=waits[: rank == 2])
        Path(run.layout.flight_record(1, rank)).write_text(json.dumps(to_json(record)))
    found = explained(run.layout)
    assert found.notes == ()
    (told,) = found.collectives
    who = "rank 2 waited in all_reduce (train.py:88); ranks 70,119 had called 6 of it"
    assert told == f"collective 7 of default_pg: {who}; the record of 1 rank was not there"


def test_the_stack_of_the_rank_that_the_cause_names_is_read_first_where_there_is_no_time_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of ranks 0, 1, 2 ... were: on a slow file system that of the rank that hung was none of them."""
    run = large(KINDS["stalled"](tmp_path / "run"), 120)
    for rank in range(120):
        Path(run.layout.stack(1, rank)).write_text(READS if rank == 97 else WAITS)
    result = json.loads(Path(run.layout.result).read_text())
    result["root_cause"] |= {"rank": 97, "silent": "0-96,98-119"}
    Path(run.layout.result).write_text(json.dumps(result))
    ticks = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: 0.01 * next(ticks))  # each look takes 10 ms
    found = explained(run.layout)
    assert found.stacks[0] == "rank 97 on ? is in open_shard (data.py:31)"
    assert any(note.startswith("of the ranks' stacks, ") and "of 120 were looked at" in note for note in found.notes)


def test_a_pipe_in_the_place_of_an_error_file_blocks_nobody(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    os.mkfifo(_made(run.layout.error(1, 3)))
    run.end(RunState.FAILED, exit_code=1, reason="restarts_used_up", cause=LINE, root_cause=CAUSE, time=LATE)
    assert explained(run.layout).cause == LINE


def test_a_file_that_cannot_be_opened_is_a_note(tmp_path: Path) -> None:
    run = KINDS["exception"](tmp_path / "run")
    path = run.layout.error(2, 3)
    os.unlink(path)
    os.symlink(path, path)
    found = explained(run.layout)
    assert found.notes == (f"{path} cannot be read: Too many levels of symbolic links",)
    assert found.cause.startswith(LINE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_note(tmp_path: Path) -> None:
    run = KINDS["exception"](tmp_path / "run")
    os.chmod(run.layout.error(2, 3), 0)
    assert explained(run.layout).notes == (f"{run.layout.error(2, 3)} cannot be read: Permission denied",)


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b"[" * 100_000, b'{"time_ns": ' + b"9" * 5000 + b"}", b"[1]"])
def test_torn_records_hide_nothing_else(damage: bytes, tmp_path: Path) -> None:
    run = KINDS["exception"](tmp_path / "run")
    for path in (run.layout.error(2, 3), run.layout.world(1), run.layout.events("node1"), run.layout.requests):
        Path(_made(path)).write_bytes(damage)
    found = explained(run.layout)
    assert found.cause.startswith(LINE)
    assert found.rank == 3


@pytest.mark.long
@pytest.mark.parametrize("name", ["result", "submission"])
def test_a_record_that_cannot_be_read_is_named_and_left_out(name: str, tmp_path: Path) -> None:
    run = KINDS["exception"](tmp_path / "run")
    path = getattr(run.layout, name)
    Path(path).write_bytes(b"{")
    found = explained(run.layout)
    assert f"{path} cannot be read" in "; ".join(found.notes)
    assert found.state == ("UNKNOWN" if name == "result" else "FAILED")
    assert found.history[0].cause == LINE


def test_claims_that_are_missing_or_of_another_shape_are_left_out(tmp_path: Path) -> None:
    run = KINDS["exception"](tmp_path / "run")
    os.unlink(run.layout.claim(1))
    claim = json.loads(Path(run.layout.claim(2)).read_text())
    claim |= {"root_cause": {"line": "boom", "rank": "3", "failed": "x-", "timestamp": 1e300, "attempt": []}}
    Path(run.layout.claim(2)).write_text(json.dumps(claim))
    found = explained(run.layout, 1)
    assert found.cause == f"boom; {LINE}"
    assert plain_explanation(found, 80)


def test_thousands_of_attempts_are_shown_as_a_few_lines(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    for number in range(2, 30):
        run.open_attempt(number, reason=f"rank {number} failed", restarts=number - 1, time=LATER)
    text = plain_explanation(explained(run.layout), 80)
    assert "(21 attempts left out)" in text
    assert len(text.splitlines()) < 40


def test_long_rank_sets_are_cut(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    cause = CAUSE.__class__(
        attempt=1, failure_class="exception", line=LINE, rank=3, victims=",".join(str(2 * n) for n in range(2, 2000))
    )
    run.end(RunState.FAILED, exit_code=1, reason="restarts_used_up", cause=LINE, root_cause=cause, time=LATE)
    others = next(line for line in plain_explanation(explained(run.layout), 200).splitlines() if "others" in line)
    assert others.startswith("others    1998 ranks (4,6,8,")
    assert len(others) < 120


def test_ranks_whose_error_files_were_not_read_are_not_said_to_have_been_stopped(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    for rank in range(MOST_ERROR_FILES + 8):
        run.write_error(1, rank, failure_class="peer_lost" if rank else "exception")
    run.end(RunState.UNKNOWN, exit_code=7, reason="no_result", cause="the job ended", time=LATE)
    found = explained(run.layout)
    assert (found.rank, found.stopped, len(found.failures)) == (0, "", 20)
    assert f"{MOST_ERROR_FILES + 8} ranks left an error file; the {MOST_ERROR_FILES} oldest were read" in found.notes


def test_failure_in_the_last_attempt_goes_before_the_restart_if_the_job_is_gone(tmp_path: Path) -> None:
    run = KINDS["out_of_memory"](tmp_path / "run").write_error(2, 3, callstack=TRACEBACK)
    os.unlink(run.layout.submission)  # which is a note: nobody can say that the job lives
    assert (explained(run.layout).attempt, explained(run.layout).rank) == (2, 3)


_KEYS = (
    *("message", "extraInfo", "py_callstack", "class", "time_ns", "timestamp", "stderr_tail", "rank", "frame", "pid"),
    *("exit_code", "signal", "detail", "node"),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=8),
    max_leaves=12,
)


@pytest.mark.long
@given(content=st.dictionaries(st.sampled_from(_KEYS), _JSON, max_size=10))
def test_no_error_file_makes_it_fail(content: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> None:
    run = start(tmp_path_factory.mktemp("explain") / "run")
    Path(_made(run.layout.error(1, 3))).write_text(json.dumps(content))
    run.end(RunState.UNKNOWN, exit_code=7, reason="no_result", cause="the job ended", time=LATE)
    text = plain_explanation(explained(run.layout), 80)
    assert text == printable(text)


def _made(path: str) -> str:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def test_files_and_evidence_are_the_nodes_log_where_its_ranks_share_one(tmp_path: Path) -> None:
    run = KINDS["exception"](tmp_path / "run")
    plan = json.loads(Path(run.layout.plan).read_text())
    plan["logs"] = {**(plan.get("logs") or {}), "per": "node"}
    Path(run.layout.plan).write_text(json.dumps(plan))
    os.unlink(run.layout.error(2, 3))
    log = _made(run.layout.node_log(2, "node2"))
    head = "2026-01-02T03:06:05.000000Z"
    Path(log).write_text(f"{head} 2 err not mine\n{head} 3 out step 1\n{head} 3 err+ out of \n{head} 3 err luck\n")
    found = explained(run.layout, 2)
    assert found.rank == 3
    assert log in found.files
    assert not [path for path in found.files if path.endswith(("stdout.log", "stderr.log"))]
    (excerpt,) = [each for each in found.excerpts if each.path == log]
    assert excerpt.lines == ("out of luck",)
