"""Run directories of runs that went wrong, one for each kind of failure, as the agents write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hpc_elastic.codec import to_json
from hpc_elastic.errors import RendezvousCause
from hpc_elastic.rundir import store
from hpc_elastic.rundir.complaint import complaint
from hpc_elastic.rundir.records import Event, FailureRecord, RendezvousRecord, RootCause, RunState, WorkerState
from tests.observe.builders import TIME, RunBuilder, make_failure

BEGAN_S = 1_767_323_045.0  # TIME
LATER, LATE, LAST = ("2026-01-02T03:06:05.000000Z", "2026-01-02T03:08:05.000000Z", "2026-01-02T04:08:05.000000Z")
TRACEBACK = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 120, in <module>
    main()
  File "/home/ada/train.py", line 88, in step
    loss = model(batch[index])
  File "/usr/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1773, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
ValueError: no such batch
"""
SEGFAULT = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f1 (most recent call first):
  File "/home/ada/ops.py", line 12 in gather
  File "/home/ada/train.py", line 88 in step
"""
WAITS = """\
Current thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 2901 in all_reduce
  File "/home/ada/train.py", line 88 in step
"""
READS = """\
Current thread 0x00007f1 (most recent call first):
  File "/home/ada/data.py", line 31 in open_shard
  File "/home/ada/train.py", line 80 in step
"""
LINE = "rank 3 on node2 failed with exit code 1: ValueError: no such batch"
CAUSE = RootCause(
    attempt=1,
    failure_class="exception",
    line=LINE,
    rank=3,
    node="node2",
    frame="train.py:88 in step",
    timestamp=BEGAN_S + 75,
    failed="3",
    victims="0-1",
    silent="2",
    observed_first=0,
)


def failure(
    run: RunBuilder, rank: int, words: str = "exception", message: str = "", *, at: float = 75
) -> FailureRecord:
    """Return the record of a rank that ended with exit code 1."""
    made = make_failure(rank, run.layout, timestamp=BEGAN_S + at)
    node = f"node{1 + rank // 2}"
    return replace(
        made, node=node, local_rank=rank % 2, exitcode=1, signal_name=None, failure_class=words, message=message
    )


def start(root: Path, *, max_restarts: int = 3) -> RunBuilder:
    return RunBuilder(root, max_restarts=max_restarts).submit().start_script().allocate().open_attempt(1)


def exception(root: Path) -> RunBuilder:
    run = start(root, max_restarts=1)
    run.open_attempt(2, reason=LINE, restarts=1, root_cause=CAUSE, time=LATER)
    run.write_error(2, 3, callstack=TRACEBACK, message="ValueError: no such batch", stderr_tail=TRACEBACK)
    failures = {"3": failure(run, 3, message="ValueError: no such batch"), "0": failure(run, 0, "peer_lost", "reset")}
    cause = f"{LINE}; the one restart of max_restarts is used up"
    last = replace(CAUSE, attempt=2, timestamp=BEGAN_S + 200)
    return run.end(
        RunState.FAILED,
        exit_code=1,
        reason="restarts_used_up",
        cause=cause,
        failures={rank: replace(each, attempt=2) for rank, each in failures.items()},
        root_cause=last,
        time=LATE,
    )


def out_of_memory(root: Path) -> RunBuilder:
    """It still runs, after a restart."""
    line = "rank 1 on node1 was killed by the out-of-memory killer: 251 of 256 GiB"
    run = start(root)
    killed = replace(failure(run, 1, "out_of_memory"), signal_name="SIGKILL", exitcode=-9, detail="251 of 256 GiB")
    run.end_node(1, "node1", killed).write_rank(1, 1, "", "epoch 3, step 1200\n")
    cause = replace(
        CAUSE, failure_class="out_of_memory", line=line, rank=1, node="node1", frame="", failed="1", victims="0,2-3"
    )
    cause = replace(cause, silent="", observed_first=1)
    return run.open_attempt(2, reason=line, restarts=1, root_cause=cause, time=LATER)


def segmentation_fault(root: Path) -> RunBuilder:
    line = "rank 2 on node2 was killed by SIGSEGV"
    run = start(root, max_restarts=0).write_rank(1, 2, "", "loading\n" + SEGFAULT)
    died = replace(failure(run, 2, "segmentation_fault", "killed by SIGSEGV"), signal_name="SIGSEGV", exitcode=-11)
    cause = replace(
        CAUSE, failure_class="segmentation_fault", line=line, rank=2, frame="ops.py:12 in gather", failed="2"
    )
    cause = replace(cause, victims="", silent="0-1,3", observed_first=2)
    return run.end(
        RunState.FAILED,
        exit_code=1,
        reason="restarts_used_up",
        cause=line,
        failures={"2": died},
        root_cause=cause,
        time=LATE,
    )


def silent_rank(root: Path) -> RunBuilder:
    words = "RuntimeError: Timed out waiting 1800000ms for recv operation to complete"
    line = (
        "rank 2 did not take part in a collective in which others timed out; rank 0 on node1 failed with exit code 1: "
        f"{words}"
    )
    run = start(root).write_rank(1, 2, "", "reading shard 17\n")
    failures = {str(rank): failure(run, rank, "collective_timeout", words) for rank in (0, 1, 3)}
    cause = replace(CAUSE, failure_class="silent", line=line, rank=2, frame="", failed="", victims="0-1,3", silent="2")
    return run.end(
        RunState.FAILED,
        exit_code=1,
        reason="no_progress",
        cause=f"{line}; the same failure came 3 times with no progress in between",
        failures=failures,
        root_cause=cause,
        time=LATE,
    )


def stalled(root: Path) -> RunBuilder:
    """All stacks were taken: one rank is in a file, the others wait for it."""
    line = "rank 2 on node2 stalled: no heartbeat for 600 s after step 1200"
    run = start(root, max_restarts=0)
    for rank in range(4):
        Path(run.layout.rank(1, rank)).mkdir(parents=True, exist_ok=True)
        Path(run.layout.stack(1, rank)).write_text(READS if rank == 2 else WAITS)
    words = "no heartbeat within stall_timeout (600 s): it is in open_shard (data.py:31)"
    hung = replace(failure(run, 2, "stalled", words), frame="data.py:31 in open_shard", detail="no heartbeat for 600 s")
    cause = replace(CAUSE, failure_class="stalled", line=line, rank=2, frame=hung.frame, failed="2", victims="0-1")
    return run.end(
        RunState.FAILED,
        exit_code=1,
        reason="restarts_used_up",
        cause=line,
        failures={"2": hung},
        root_cause=replace(cause, silent="3", observed_first=2),
        time=LATE,
    )


def node_lost(root: Path) -> RunBuilder:
    """It still runs, with a spare node in the place of the one that was lost."""
    run = RunBuilder(root).submit().allocate(nodes=("node1", "node2", "node3")).open_attempt(1)
    note_loss(run, "node2: it was silent for 10 s")
    write_agent(run, "node2", "attempt 1: 2 workers started\n")
    reason = "node2 was lost: it was silent for 10 s"
    return run.open_attempt(2, reason=reason, node_losses=1, nodes=("node1", "node3"), time=LATER)


def node_lost_beyond_min(root: Path) -> RunBuilder:
    run = start(root)
    note_loss(run, "node2: its connection closed")
    write_agent(run, "node2", "attempt 1: 2 workers started\n")
    cause = "node2 was lost: its connection closed; too few nodes are left to go on"
    return run.end(RunState.FAILED, exit_code=7, reason="node_lost", cause=cause, nodes=("node1",), time=LATE)


def lost_before_first_attempt(root: Path) -> RunBuilder:
    """An agent has ended while its node was waited for with the others; no attempt was opened."""
    run = RunBuilder(root).submit().start_script().allocate()
    write_agent(run, "node2", "joined node1\n")
    line = "node2 was lost: the other side closed the connection; too few nodes are left to go on"
    cause = RootCause(attempt=0, failure_class="agent_lost", line=line, node="node2", timestamp=BEGAN_S + 4)
    return run.end(
        RunState.FAILED, exit_code=7, reason="node_lost", cause=line, nodes=("node1",), root_cause=cause, time=LATE
    )


def nodes_missing(root: Path) -> RunBuilder:
    run = RunBuilder(root).submit().start_script("waiting for node2 to join; 0 s left\n").allocate()
    record = RendezvousRecord(
        run=run.plan.run,
        node="node2",
        job_id="42",
        restart_count=0,
        cause=RendezvousCause.CANNOT_RESOLVE,
        detail="cannot resolve node1: Name or service not known",
        head="node1",
        address=None,
        port=None,
        tries=12,
        gave_up=False,
        versions={},
        time=TIME,
    )
    store.write_json(run.layout.rendezvous("node2"), to_json(record))
    cause = "1 of 2 nodes joined within 300 s, expected 2: node2 cannot resolve node1: Name or service not known"
    return run.end(RunState.FAILED, exit_code=6, reason="nodes_missing", cause=cause, nodes=(), time=LATE)


def setup_failed(root: Path) -> RunBuilder:
    words = "bash: line 12: module: command not found"
    run = RunBuilder(root).submit().start_script(f"hpc_elastic: run directory\n{words}\n")
    cause = f"the script ended with exit code 127 before any agent started: {words}"
    return run.end(
        RunState.FAILED, exit_code=3, reason="setup_failed", cause=cause, nodes=(), written_by="login", time=LATE
    )


def cancelled(root: Path) -> RunBuilder:
    run = start(root).request_stop("wrong learning rate")
    cause = "cancelled by ada@login1: wrong learning rate"
    return run.end(RunState.CANCELLED, exit_code=10, reason="stop_requested", cause=cause, time=LATE)


def terminated(root: Path) -> RunBuilder:
    cause = "node1 got SIGTERM from outside: scancel, preemption or a time limit"
    return start(root).end(RunState.CANCELLED, exit_code=10, reason="terminated", cause=cause, time=LATE)


def no_result(root: Path) -> RunBuilder:
    """The head died; the ranks' error files are all that is left."""
    run = start(root)
    peer = "RuntimeError: Connection closed by peer [127.0.0.3]:4711"
    run.write_error(1, 0, failure_class="peer_lost", message=peer, time_ns=int((BEGAN_S + 70) * 1e9))
    run.write_error(1, 3, callstack=TRACEBACK, time_ns=int((BEGAN_S + 71) * 1e9))
    write_agent(run, "node1", "attempt 1: 2 workers started\nworker 0 exited\n")
    cause = "the scheduler does not know the job any more, and no agent wrote a result"
    return run.end(
        RunState.UNKNOWN, exit_code=7, reason="no_result", cause=cause, written_by="login", nodes=(), time=LATE
    )


def agent_failed(root: Path) -> RunBuilder:
    crash = 'Traceback (most recent call last):\n  File "supervisor.py", line 7, in run\nMemoryError\n'
    run = start(root).end_node(1, "node2", state=WorkerState.UNKNOWN, detail=crash)
    write_agent(run, "node1", complaint("the disk is gone", ("42", 0)) + "\n")
    cause = "the agent of node2 failed: MemoryError"
    return run.end(RunState.FAILED, exit_code=7, reason="agent_failed", cause=cause, written_by="script", time=LATE)


def old_run(root: Path) -> RunBuilder:
    """A run of a version without root causes, whose cause names a rank that only lost its peer."""
    run = start(root, max_restarts=0).write_error(1, 3, callstack=TRACEBACK)
    peer = "RuntimeError: Connection closed by peer [127.0.0.3]:4711"
    failures = {
        "0": failure(run, 0, "peer_lost", peer, at=74),
        "3": failure(run, 3, message="ValueError: no such batch", at=75),
    }
    cause = f"rank 0 on node1 failed with exit code 1: {peer}"
    return run.end(RunState.FAILED, exit_code=1, reason="restarts_used_up", cause=cause, failures=failures, time=LATE)


def succeeded(root: Path) -> RunBuilder:
    run = start(root)
    run.open_attempt(2, reason=LINE, restarts=1, root_cause=CAUSE, time=LATER)
    reason = "node2 was lost: its connection closed"
    run.open_attempt(3, reason=reason, restarts=1, node_losses=1, nodes=("node1", "node3"), time=LATE)
    return run.end(time=LAST, restarts=1)


def pending(root: Path) -> RunBuilder:
    return RunBuilder(root).submit()


def hostile(root: Path) -> RunBuilder:
    """Its worker wants to clear the screen, ring the bell and turn the writing direction round."""
    message = "ValueError: \x1b[2J\x1b]0;title\x07gone\rfine \u202egnp.exe \udcff \x9b31m"
    line = f"rank 3 on node2 failed with exit code 1: {message}"
    run = start(root, max_restarts=0)
    run.write_rank(1, 3, "", f"50 %\r100 %\n\x1b[31m{message.encode('utf-8', 'replace').decode()}\x1b[0m\n")
    cause = replace(CAUSE, line=line.encode("utf-8", "backslashreplace").decode())
    return run.end(
        RunState.FAILED, exit_code=1, reason="restarts_used_up", cause=cause.line, root_cause=cause, time=LATE
    )


def note_loss(run: RunBuilder, message: str) -> None:
    event = Event(
        time_ns=int((BEGAN_S + 90) * 1e9),
        run=run.plan.run,
        node="node1",
        allocation=1,
        attempt=1,
        name="node.lost",
        message=message,
        metadata={"node": message.partition(":")[0]},
    )
    store.append_line(run.layout.events("node1"), to_json(event))


def write_agent(run: RunBuilder, node: str, text: str) -> None:
    path = Path(run.layout.agent_output(node))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"2026-01-02 03:04:05 hpc-elastic {node}: {text}")


KINDS: dict[str, Callable[[Path], RunBuilder]] = {
    made.__name__: made
    for made in (
        *(exception, out_of_memory, segmentation_fault, silent_rank, node_lost, node_lost_beyond_min, nodes_missing),
        lost_before_first_attempt,
        *(setup_failed, cancelled, terminated, no_result, agent_failed, old_run, succeeded, pending, hostile, stalled),
    )
}
