"""The table of nodes on which failures had their cause."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.rundir.index import IndexEntry, append_entry, index_path
from hpc_elastic.rundir.records import RootCause, RunState
from tests.observe.builders import RunBuilder

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def a_cause(node: str, failure_class: str, *, ago_s: float = 60.0, nodes: tuple[str, ...] = ()) -> RootCause:
    line = f"rank 5 on {node} failed: {failure_class}"
    return RootCause(
        attempt=1, failure_class=failure_class, line=line, node=node, nodes=nodes, timestamp=time.time() - ago_s
    )


def a_run(root: Path, number: int, *, ago_s: float = 60.0) -> RunBuilder:
    run = RunBuilder(root / f"digits-{number}").submit(str(number))
    submitted = datetime.fromtimestamp(time.time() - ago_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    append_entry(
        index_path(os.environ),
        IndexEntry(
            run=f"digits-{number}",
            name="digits",
            job_id=str(number),
            site="generic-slurm",
            scheduler="slurm",
            run_dir=run.layout.root,
            submitted=submitted,
        ),
    )
    return run


def nodes(capsys: Capture, *arguments: str) -> list[tuple[str, str, list[str]]]:
    assert main(["nodes", "--json", *arguments]) == 0
    return [
        (each["node"], each["problem"], [f"{one['run']}.{one['attempt']}" for one in each["incidents"]])
        for each in json.loads(capsys.readouterr().out)
    ]


def test_claims_and_results_of_all_runs_name_their_nodes(tmp_path: Path, capsys: Capture) -> None:
    first, second = a_run(tmp_path, 1), a_run(tmp_path, 2)
    first.allocate().open_attempt(1)
    first.open_attempt(2, root_cause=a_cause("node7", "cuda_hardware"))
    first.end(RunState.FAILED, exit_code=1, root_cause=a_cause("node3", "exception"))
    second.allocate().open_attempt(1)
    second.end(RunState.FAILED, exit_code=7, root_cause=a_cause("", "node_lost", nodes=("node7", "node8")))
    assert nodes(capsys) == [
        ("node7", "node_problem", ["digits-2.1", "digits-1.1"]),
        ("node8", "node_problem", ["digits-2.1"]),
        ("node3", "user_problem", ["digits-1.1"]),
    ]
    assert [node for node, _, _ in nodes(capsys, "--problem", "user")] == ["node3"]
    assert [node for node, _, _ in nodes(capsys, "node8")] == ["node8"]
    assert main(["nodes", "node7"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading == "node7 [node_problem] 2 times"
    assert all(len(line) <= 80 for line in lines)
    assert "digits-1 attempt 1: rank 5 on node7 failed: cuda_hardware" in " ".join(map(str.strip, lines))


def test_a_run_that_failed_often_shows_its_latest_failures_and_the_number_of_the_others(
    tmp_path: Path, capsys: Capture
) -> None:
    run = a_run(tmp_path, 1, ago_s=9000.0).allocate()
    run.open_attempt(1)
    for number in range(2, 102):
        run.open_attempt(number, root_cause=a_cause("node7", "exception", ago_s=8000.0 - number))
    assert main(["nodes"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading == "node7 [user_problem] 100 times"
    assert [" ".join(line.split()[2:]) for line in lines[:3]] == [
        "digits-1 attempt 1: rank 5 on node7 failed: exception"
    ] * 3
    assert [" ".join(line.split()[2:]) for line in lines[3:]] == ["digits-1: since then 97 more"]
    assert len(nodes(capsys)[0][2]) == 100


def test_what_is_longer_ago_is_left_out(tmp_path: Path, capsys: Capture) -> None:
    run = a_run(tmp_path, 1, ago_s=20 * 86400.0).allocate()
    run.open_attempt(1)
    run.open_attempt(2, root_cause=a_cause("node7", "node_lost", ago_s=10 * 86400.0))
    run.open_attempt(3, root_cause=a_cause("node8", "node_lost"))
    assert [node for node, _, _ in nodes(capsys, "--since", "7d")] == ["node8"]
    assert [node for node, _, _ in nodes(capsys)] == ["node8", "node7"]


def test_records_that_cannot_be_read_and_runs_without_failures_name_nobody(tmp_path: Path, capsys: Capture) -> None:
    run = a_run(tmp_path, 1).allocate()
    run.open_attempt(1)
    run.open_attempt(2, root_cause=a_cause("node7", "node_lost"))
    Path(run.layout.claim(2)).write_text('{"root_cause": {"line"')
    Path(run.layout.result).write_text("[]")
    a_run(tmp_path, 2).allocate().end()
    assert main(["nodes"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "no node was named as the place of a failure, or left out, within 30d\n")
    assert nodes(capsys) == []


def test_a_node_that_nobody_named_is_not_taken_for_all(tmp_path: Path, capsys: Capture) -> None:
    run = a_run(tmp_path, 1).allocate()
    run.open_attempt(1)
    run.open_attempt(2, root_cause=a_cause("node7", "node_lost"))
    assert main(["nodes", "Node7", "node70"]) == 0
    assert (
        capsys.readouterr().err
        == "none of Node7, node70 was named as the place of a failure, or left out, within 30d\n"
    )
    assert main(["nodes", "--problem", "user"]) == 0
    told = capsys.readouterr().err
    assert told == "no node was named, with the mark user_problem, as the place of a failure, or left out, within 30d\n"


def test_a_time_that_is_none_is_a_usage_error(capsys: Capture) -> None:
    assert main(["nodes", "--since", "yesterday"]) == 2
    assert "--since: expected a duration such as 90m" in capsys.readouterr().err


def test_a_worker_cannot_draw_on_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    run = a_run(tmp_path, 1).allocate()
    run.open_attempt(1)
    run.end(RunState.FAILED, exit_code=1, root_cause=a_cause("node3", "\x1b[2Jexception"))
    assert main(["nodes"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_nodes_that_runs_began_without_are_named_with_the_reason(tmp_path: Path, capsys: Capture) -> None:
    now = time.time_ns()
    for number in (1, 2):
        run = a_run(tmp_path, number).allocate(nodes=("node1", "node2", "node3"))
        run.note(
            "node1", "node.left_out", "node2", attempt=0, reason="cannot take part: no /data", time_ns=now + number
        )
        run.note("node1", "node.left_out", "node2", attempt=0, reason="again", time_ns=now)
        run.open_attempt(1)
    run.note("node1", "node.unhealthy", "node3", attempt=1, reason="scratch: the disk is full", time_ns=now)
    run.note("node1", "node.left_out", "node4", attempt=1, reason="has gone", time_ns=now - 40 * 86400 * 10**9)
    assert nodes(capsys) == [
        ("node2", "node_problem", ["digits-2.0", "digits-1.0"]),
        ("node3", "node_problem", ["digits-2.1"]),
    ]
    assert main(["nodes"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "digits-1 before its first attempt: cannot take part: no /data" in told
    assert "digits-2 attempt 1: unhealthy: scratch: the disk is full" in told


def test_a_node_that_one_run_alone_began_without_is_no_node_problem_yet(tmp_path: Path, capsys: Capture) -> None:
    run = a_run(tmp_path, 1).allocate()
    reason = "has never started its agent: srun: Exited with exit code 2"
    run.note("node1", "node.left_out", "node2", attempt=0, reason=reason, time_ns=time.time_ns())
    assert nodes(capsys) == [("node2", "user_problem", ["digits-1.0"])]


def test_a_node_that_came_after_all_is_not_said_to_have_been_left_out(tmp_path: Path, capsys: Capture) -> None:
    for number in (1, 2):
        run = a_run(tmp_path, number).allocate(nodes=("node1", "node2", "node3"))
        reason = "has given no sign of its agent"
        run.note("node1", "node.left_out", "node3", attempt=0, reason=reason, time_ns=time.time_ns()).open_attempt(1)
        run.note("node2" if number == 1 else "node1", "node.joined", "node3", attempt=1)
        run.open_attempt(2, nodes=("node2", "node3"))
    assert nodes(capsys) == []


def test_a_node_that_a_short_run_did_not_wait_for_is_not_said_to_have_been_left_out(
    tmp_path: Path, capsys: Capture
) -> None:
    """A run with spare nodes begins without the slowest ones, and may be over before their agents have started."""
    begun = time.time() - 1000.0
    for number, lasts_s, ends in ((3, 60.0, True), (4, 900.0, True), (5, 0.0, False)):
        run = a_run(tmp_path, number).allocate(nodes=("node1", "node2", f"node{number}")).open_attempt(1)
        noted = begun if ends else time.time() - 60.0
        run.note(
            "node1",
            "node.left_out",
            f"node{number}",
            attempt=0,
            reason="has given no sign of its agent",
            time_ns=int(noted * 1e9),
        )
        if ends:
            over = datetime.fromtimestamp(begun + lasts_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            run.end(time=over)
    assert nodes(capsys) == [("node4", "user_problem", ["digits-4.0"])]


def test_the_latest_reason_for_which_a_node_was_left_out_counts(tmp_path: Path, capsys: Capture) -> None:
    run, now = a_run(tmp_path, 1).allocate(), time.time_ns()
    run.note("node1", "node.left_out", "node2", attempt=0, reason="has given no sign of its agent", time_ns=now)
    run.note("node1", "node.left_out", "node2", attempt=1, reason="cannot take part: no /data", time_ns=now + 10**9)
    assert nodes(capsys) == [("node2", "user_problem", ["digits-1.1"])]


def test_the_events_of_a_run_are_read_unless_all_nodes_took_part_in_it(tmp_path: Path, capsys: Capture) -> None:
    """Of a thousand runs most have succeeded at once with all of their nodes, and their events need not be read."""

    def a_run_with_a_note(number: int, *, nodes: tuple[str, ...], attempts: int, state: RunState) -> None:
        run = a_run(tmp_path, number).allocate(nodes=nodes)
        reason = "scratch: the disk is full"
        run.note("node1", "node.unhealthy", f"node{number}", attempt=0, reason=reason, time_ns=time.time_ns())
        for attempt in range(1, attempts + 1):
            run.open_attempt(attempt, nodes=("node1", "node2"))
        run.end(state, exit_code=0 if state is RunState.SUCCEEDED else 3)

    a_run_with_a_note(3, nodes=("node1", "node2", "node3"), attempts=1, state=RunState.SUCCEEDED)
    a_run_with_a_note(4, nodes=("node1", "node2"), attempts=2, state=RunState.SUCCEEDED)
    a_run_with_a_note(5, nodes=("node1", "node2"), attempts=0, state=RunState.SUCCEEDED)
    a_run_with_a_note(6, nodes=("node1", "node2"), attempts=1, state=RunState.FAILED)
    a_run_with_a_note(7, nodes=("node1", "node2"), attempts=1, state=RunState.SUCCEEDED)
    assert sorted(node for node, _, _ in nodes(capsys)) == ["node3", "node4", "node5", "node6"]


def test_where_most_nodes_of_a_start_are_left_out_it_is_the_problem_of_none(tmp_path: Path, capsys: Capture) -> None:
    for number in (1, 2):
        run = a_run(tmp_path, number).allocate(nodes=("node1", "node2", "node3"))
        reason = "cannot take part: there is no /hmoe/ada"
        run.note("node1", "node.left_out", "node1", "node2", attempt=0, reason=reason, time_ns=time.time_ns() + number)
    assert nodes(capsys) == [
        ("node1", "user_problem", ["digits-2.0", "digits-1.0"]),
        ("node2", "user_problem", ["digits-2.0", "digits-1.0"]),
    ]


def test_where_most_nodes_of_a_start_are_unhealthy_it_is_the_problem_of_none(tmp_path: Path, capsys: Capture) -> None:
    def note(number: int, step: tuple[str, ...], *nodes: str) -> None:
        run = a_run(tmp_path, number).allocate(nodes=step)
        reason = "scratch: /scrtach is not there"
        run.note(step[0], "node.unhealthy", *nodes, attempt=0, reason=reason, time_ns=time.time_ns())

    note(1, ("node1", "node2", "node3"), "node2", "node3")
    assert nodes(capsys) == [(node, "user_problem", ["digits-1.0"]) for node in ("node2", "node3")]
    note(2, ("node4", "node5"), "node4")  # the half is not most
    note(3, ("node6",), "node6")  # which no other node can speak for
    assert [node for node, problem, _ in nodes(capsys) if problem == "node_problem"] == ["node6", "node4"]


def test_a_slip_in_the_job_files_of_one_node_is_no_problem_of_that_node(tmp_path: Path, capsys: Capture) -> None:
    """Jobs of one node are sent again, and meet the same free node: nobody should drain it for that."""
    reasons = {
        "node1": "entrypoint.script /home/ada/trian.py is not a file on this node",
        "node2": "entrypoint.args[0]: ${lr} is not set on this node; export it in setup, or set it in env",
        "node3": "workdir /home/ada/rnu is not a directory on this node",
        "node4": "the step sees 3 GPUs, the job asked for gpus_per_node: 4",
    }
    for number, (node, reason) in enumerate([*reasons.items(), *reasons.items()], start=1):
        run = a_run(tmp_path, number).allocate(nodes=(node,))
        why = f"cannot take part: {reason}"
        run.note(node, "node.left_out", node, attempt=0, reason=why, time_ns=time.time_ns())
    assert [node for node, problem, _ in nodes(capsys) if problem == "node_problem"] == ["node4"]


@pytest.mark.parametrize("broken", ['"time_ns": 1e999', '"attempt": Infinity', '"x": ' + "[" * 100_000, '"node": 7'])
def test_an_event_that_no_head_wrote_hides_no_other(tmp_path: Path, capsys: Capture, broken: str) -> None:
    run = a_run(tmp_path, 1).allocate(nodes=("node1", "node2", "node3"))
    run.note("node1", "node.left_out", "node2", attempt=0, reason="cannot route", time_ns=time.time_ns())
    path = Path(run.layout.events("node1"))
    whole = path.read_text()
    path.write_text(whole.replace("node2", "node3").replace("{", "{" + broken + ", ", 1) + whole)
    path.write_text(path.read_text() + whole[: len(whole) // 2])
    assert ("node2", "user_problem", ["digits-1.0"]) in nodes(capsys)
    assert main(["nodes"]) == 0


def test_a_cause_with_an_impossible_time_does_not_end_the_table(tmp_path: Path, capsys: Capture) -> None:
    run = a_run(tmp_path, 1).allocate()
    run.open_attempt(1)
    run.open_attempt(2, root_cause=a_cause("node7", "node_lost", ago_s=-1e300))
    run.end(RunState.FAILED, exit_code=7, root_cause=a_cause("node8", "node_lost"))
    assert [node for node, _, _ in nodes(capsys)] == ["node8"]
    assert main(["nodes"]) == 0
