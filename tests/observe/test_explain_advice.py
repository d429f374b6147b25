"""What is said to do next: by the signal, the exception, the end of the run and the stacks, not by the class alone."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.failures.root_cause import ObservedFailure, StoppedRanks, find_root_cause
from hpc_elastic.observe.explain import Explanation, explain
from hpc_elastic.observe.explain_advice import ENDED_EARLY
from hpc_elastic.observe.explain_facts import ExplainFacts
from hpc_elastic.observe.explain_reader import read_explain_facts
from hpc_elastic.observe.facts import FactReader
from hpc_elastic.observe.present_explanation import plain_explanation
from hpc_elastic.observe.snapshot import make_snapshot, take_tolerant_snapshot
from hpc_elastic.observe.watch import RunWatch
from hpc_elastic.rundir.records import FailureRecord, RootCause, RunState
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from tests.membership.script import a_failure
from tests.observe.builders import RunBuilder
from tests.observe.failed_runs import CAUSE, LATE, failure, note_loss, silent_rank, stalled, start
from tests.observe.test_snapshot import TellingScheduler


def ended(root: Path, died: FailureRecord, *, reason: str = "restarts_used_up", line: str = "it failed") -> Explanation:
    cause = replace(CAUSE, failure_class=died.failure_class, line=line, rank=died.rank, node=died.node)
    return explained(root, replace(cause, frame=died.frame), died, reason=reason)


def explained(root: Path, cause: RootCause, *failures: FailureRecord, reason: str = "restarts_used_up") -> Explanation:
    run = start(root)
    run.end(
        RunState.FAILED,
        exit_code=1,
        reason=reason,
        cause=cause.line,
        failures={str(each.rank): each for each in failures},
        root_cause=cause,
        time=LATE,
    )
    return explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0)


@pytest.mark.parametrize(
    ("signal", "meaning", "advice"),
    [
        ("SIGILL", "processor", "compare the processors"),
        ("SIGXCPU", "limit of CPU time", "ulimit -t"),
        ("SIGALRM", "alarm", "signal.alarm"),
        ("SIGKILL", "a signal from outside of the run", "ask who sent it"),
    ],
)
def test_a_signal_that_nobody_sent_is_not_put_down_to_anybody(
    signal: str, meaning: str, advice: str, tmp_path: Path
) -> None:
    found = ended(tmp_path / "run", replace(failure(start(tmp_path / "other"), 3, "signal"), signal_name=signal))
    assert meaning in found.meaning
    assert advice in found.advice[0]


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("OSError: [Errno 24] Too many open files: 'a'", "ulimit -n"),
        ("DistBackendError: NCCL error\nCall to ibv_reg_mr failed with error Cannot allocate memory", "ulimit -l"),
        ("DistBackendError: NCCL error\nDuplicate GPU detected : rank 1 and rank 0", "set_device(LOCAL_RANK)"),
        ("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use", "multiprocessing_context='spawn'"),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load the files", "HF_HUB_OFFLINE=1"),
        ("ConnectionError: Couldn't reach 'allenai/c4' on the Hub (LocalEntryNotFoundError)", "HF_HUB_OFFLINE=1"),
        ("ConnectionError: HTTPSConnectionPool: Max retries exceeded with url: /graphql", "WANDB_MODE=offline"),
        ("UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])", "wandb login"),
        ("MemoryError", "sbatch.mem"),
        ("RuntimeError: can't start new thread", "ulimit -u"),
        ("RuntimeError: Resource temporarily unavailable", "pids.max"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", "ran out of memory"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a'", "whether the path is there"),
        ("ValueError: no such batch", "begin at train.py:88 in step, the innermost line of your own code"),
    ],
)
def test_what_to_do_about_an_exception_follows_its_words(message: str, advice: str, tmp_path: Path) -> None:
    raised = replace(failure(start(tmp_path / "other"), 3, message=message), frame="train.py:88 in step")
    assert advice in ended(tmp_path / "run", raised).advice[0]


@pytest.mark.parametrize(
    ("places", "is_named"),
    [
        ([(3, "node2"), (2, "node2"), (3, "node2")], True),
        ([(2, "node2"), (3, "node2")], True),
        ([(0, "node1"), (2, "node2"), (3, "node2")], False),
        ([(0, "node1"), (2, "node2"), (3, "node2"), (2, "node2")], True),
        ([(3, "node2"), (3, "node2"), (3, "node2")], False),
        ([(3, "node2"), (0, "node1"), (2, "node2")], False),
        ([(3, "node2")], False),
    ],
)
def test_a_node_on_which_different_ranks_fail_again_and_again_is_named(
    places: list[tuple[int, str]], is_named: bool, tmp_path: Path
) -> None:
    causes = [replace(CAUSE, attempt=number, rank=rank, node=node) for number, (rank, node) in enumerate(places, 1)]
    run = start(tmp_path / "run")
    for number, cause in enumerate(causes[:-1], 2):
        run.open_attempt(number, reason=cause.line, restarts=number - 1, root_cause=cause, time=LATE)
    run.end(
        RunState.FAILED, exit_code=1, reason="restarts_used_up", cause="it failed", root_cause=causes[-1], time=LATE
    )
    advice = explain(*facts(run)).advice
    named = [each for each in advice if "on node2" in each and "exclude: node2" in each]
    assert bool(named) == is_named
    assert all(("none on another node" in each) == (places[0][1] == "node2") for each in named)


def test_a_rank_that_ended_early_is_not_told_to_be_stuck(tmp_path: Path) -> None:
    victim = ObservedFailure(failure=a_failure(0, failure_class="peer_lost", message="reset"), at=1.0)
    nodes = dict.fromkeys(range(4), "node1")
    cause = find_root_cause(1, [victim], StoppedRanks(nodes=nodes, succeeded=(1,)))
    assert cause is not None
    assert ENDED_EARLY in cause.cause.line
    found = explained(tmp_path / "run", cause.cause, victim.failure)
    assert found.meaning == "it ended before the ranks that still needed it"
    assert "fewer batches" in found.advice[0]


def test_a_run_that_succeeded_at_its_exit_timeout_has_no_kind_of_failure(tmp_path: Path) -> None:
    """`elastic.after_exit_timeout: succeed`: nothing has failed, whose class would be told as `None`."""
    run = start(tmp_path / "run")
    run.end(RunState.SUCCEEDED, exit_code=0, reason="exit_timeout", cause="every rank exited 0 within it", time=LATE)
    found = explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0)
    assert "None" not in plain_explanation(found, 80)
    assert (found.meaning, found.advice) == ("", ())


def test_ranks_that_ran_on_after_the_others_are_not_told_to_lack_heartbeats(tmp_path: Path) -> None:
    said = "ranks on node1 still ran elastic.exit_timeout after the first one had exited 0"
    cause = replace(CAUSE, failure_class="stalled", line=f"{said}: ranks 1-3", rank=None, node="", candidates="1-3")
    found = explained(tmp_path / "run", replace(cause, frame="", failed="", silent="1-3"), reason="exit_timeout")
    assert found.meaning == "it ran on after the first rank had exited 0"
    assert found.advice == (
        "look what the ranks that ran on did at the end; raise elastic.exit_timeout if they had work left",
    )


def test_of_a_rank_that_waited_for_a_thread_that_an_exception_ended_that_is_to_be_mended(tmp_path: Path) -> None:
    run = silent_rank(tmp_path / "run")
    run.write_rank(
        1, 2, "", 'Exception in thread prefetch:\nTraceback (most recent call last):\n  File "a.py", line 1, in f\n'
    )
    run.write_rank(1, 2, "", "OSError: shard-17 is corrupt\n")
    found = explain(*facts(run))
    assert found.advice[0].startswith("mend the exception above that ended the thread prefetch")


def test_stacks_are_only_promised_where_some_were_taken(tmp_path: Path) -> None:
    without = explain(*facts(silent_rank(tmp_path / "without")))
    assert without.stacks == ()
    assert "set stall_timeout" in without.advice[0]
    found = explain(*facts(stalled(tmp_path / "with")))
    assert found.stacks == (
        "rank 2 on node2 is in open_shard (data.py:31)",
        "3 ranks wait in all_reduce (train.py:88): ranks 0-1,3",
    )
    assert "find out what rank 2 waited for at data.py:31 in open_shard" in found.advice[0]
    assert "hpc-elastic stacks 42 --rank 2" in found.next


def test_of_a_rank_that_exits_the_place_is_named_where_it_is_known(tmp_path: Path) -> None:
    left = replace(failure(start(tmp_path / "other"), 3, "exit_code"), frame="train.py:5 in <module>")
    assert ended(tmp_path / "run", left).advice == ("look why the script exits at train.py:5",)


def test_of_a_rank_that_faulthandler_ended_the_place_is_where_it_waited(tmp_path: Path) -> None:
    said = "faulthandler.dump_traceback_later ended it, after a timeout of 0:00:01"
    left = replace(failure(start(tmp_path / "other"), 3, "exit_code"), frame="train.py:5 in <module>", message=said)
    assert ended(tmp_path / "run", left).advice[0].startswith("find out what it waited for at train.py:5;")


def facts(run: RunBuilder) -> tuple[ExplainFacts, float]:
    layout = run.layout
    return read_explain_facts(layout, take_tolerant_snapshot(layout)), 0.0


@pytest.mark.parametrize(("number", "has_advice"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_where_the_run_directory_is_full_people_are_told_to_free_space_and_nothing_else(
    number: int, has_advice: bool, tmp_path: Path
) -> None:
    run = start(tmp_path / "run")
    run.end(RunState.FAILED, exit_code=5, reason="agent_failed", cause=f"cannot write /x: {os.strerror(number)}")
    advice = explain(*facts(run)).advice
    assert (advice == ("free some space, or choose another place with --run-dir, and submit the job again",)) == (
        has_advice
    )


def test_where_no_inode_is_left_people_are_told_to_delete_files_and_not_to_free_space(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    lack = "(no inode is left, as its file system cannot hold more than its 40 files and folders)"
    cause = f"cannot write /x: {os.strerror(errno.ENOSPC)} {lack}"
    run.end(RunState.FAILED, exit_code=5, reason="agent_failed", cause=cause)
    said = "delete some of its files, or choose another place with --run-dir, and submit the job again"
    assert explain(*facts(run)).advice == (said,)
    detail = "/scratch has no inode left for more than its 40 files"
    failed = replace(failure(start(tmp_path / "other"), 1, "disk_full"), detail=detail)
    assert ended(tmp_path / "third", failed).advice[0].startswith("delete files there: there is room for data, and for")


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("./prog.sh: Permission denied", "chmod +x"),
        ("PermissionError: [Errno 13] Permission denied: '/home/ada/train.py'", "who may read it"),
        ("./prog.sh: No such file or directory", "relative paths begin in the folder of the job file"),
        ("Argument list too long: /usr/bin/python3", "shorten the arguments and the environment"),
        ("./prog.sh: neither a binary of this machine nor a script with a #! line", "#! line"),
        ("./prog.sh: Exec of it failed", "check the entrypoint"),
    ],
)
def test_what_to_do_about_a_program_that_does_not_start_follows_its_error(
    message: str, advice: str, tmp_path: Path
) -> None:
    not_started = failure(start(tmp_path / "other"), 3, "start_failed", message)
    assert advice in ended(tmp_path / "run", not_started).advice[0]


def lost_by_a_closed_connection(root: Path) -> RunBuilder:
    """A run that goes on without node2."""
    run = start(root)
    note_loss(run, "node2: the other side closed the connection")
    root_cause = RootCause(attempt=1, failure_class="agent_lost", line="node2 was lost: x", node="node2")
    return run.open_attempt(2, reason="node2 was lost", node_losses=1, nodes=("node1", "node3"), root_cause=root_cause)


@pytest.mark.parametrize(
    ("said", "job_nodes", "failure_class"),
    [
        ("srun: error: Node failure on node2\n", None, "node_lost"),  # set DOWN
        ("srun: error: node2: task 1: Killed\n", "node[1,3]", "node_lost"),  # `scontrol update NumNodes=1`
        ("srun: error: node2: task 1: Killed\n", "node[1-2]", "agent_lost"),
        ("srun: error: node2: task 1: Killed\n", None, "agent_lost"),
    ],
)
def test_a_node_that_slurm_has_taken_from_the_job_is_told_so(
    said: str, job_nodes: str | None, failure_class: str, tmp_path: Path
) -> None:
    run = lost_by_a_closed_connection(tmp_path / "run").start_script(f"hpc_elastic: run directory\n{said}")
    job = JobStatus(job_id=run.job_id, state=JobState.RUNNING, native_state="RUNNING", nodes=job_nodes)
    found = explain(read_explain_facts(run.layout, make_snapshot(FactReader(run.layout).read(), job)), 0.0)
    assert found.failure_class == failure_class
    assert any("Slurm has taken node2 from the job" in note for note in found.notes) == (failure_class == "node_lost")


def test_nodes_that_the_next_start_of_the_job_does_not_have_are_not_lost(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    note_loss(run, "node2: no answer for 10 s")
    run.start_script("srun: error: Node failure on node2\n").end_allocation(1, "node_lost").allocate(
        2, nodes=("node3", "node4")
    )
    run.open_attempt(2, reason="the run goes on", node_losses=1, nodes=("node3", "node4"), allocation=2)
    job = JobStatus(job_id=run.job_id, state=JobState.RUNNING, native_state="RUNNING", nodes="node[3-4]")
    found = explain(read_explain_facts(run.layout, make_snapshot(FactReader(run.layout).read(), job)), 0.0)
    assert found.lost_nodes == ("node2",)
    assert [note for note in found.notes if "has taken node1" in note or "node2, node1" in note] == []


def test_a_launch_that_slurmd_did_not_answer_in_time_may_wait_for_a_prolog(tmp_path: Path) -> None:
    cause = (
        "srun could not start the agents on node2 (Socket timed out on send/recv operation), so that no agent went on"
    )
    run = RunBuilder(tmp_path / "run").submit().start_script().allocate()
    run.end(RunState.FAILED, exit_code=7, reason="node_lost", cause=cause)
    found = explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0)
    assert "how long its prolog takes" in found.advice[0]


def test_a_job_that_slurm_has_suspended_is_told_not_to_run(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    job = JobStatus(job_id=run.job_id, state=JobState.RUNNING, native_state="SUSPENDED")
    found = explain(read_explain_facts(run.layout, make_snapshot(FactReader(run.layout).read(), job)), 0.0)
    assert "Slurm has stopped the job (SUSPENDED): nothing of it runs until it is resumed" in found.notes


def test_a_job_on_whose_nodes_a_prolog_runs_is_told_so(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit()
    job = JobStatus(job_id=run.job_id, state=JobState.RUNNING, native_state="RUNNING", nodes="node1", reason="Prolog")
    found = explain(read_explain_facts(run.layout, make_snapshot(FactReader(run.layout).read(), job)), 0.0)
    assert found.cause == "the run has not started: a prolog of the cluster runs on the job's nodes"


def test_a_job_that_runs_its_setup_is_said_to_have_started_no_agent_yet(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().start_script("Collecting torch\n")
    job = JobStatus(job_id=run.job_id, state=JobState.RUNNING, native_state="RUNNING", nodes="node1")
    found = explain(read_explain_facts(run.layout, make_snapshot(FactReader(run.layout).read(), job)), 0.0)
    assert found.cause == "no agent has started yet: the job's script runs its setup lines, or starts the agents"
    assert "hpc-elastic logs 42 --script" in found.next


def test_a_prolog_that_takes_longer_than_a_launch_can_be_waited_for(tmp_path: Path) -> None:
    """Tried on 22.05, 24.11 and 26.05: the prolog runs on when srun has given up, and once for each job."""
    cause = "srun could not start the agents on node2 (Socket timed out on send/recv operation)"
    run = RunBuilder(tmp_path / "run").submit().start_script().allocate()
    run.end(RunState.FAILED, exit_code=7, reason="node_lost", cause=cause)
    found = explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0)
    assert "do srun true && break; done" in found.advice[0]


@pytest.mark.parametrize(
    ("foreground", "advice"),
    [(True, "keep the allocation until the run is over"), (False, "if it was the time limit or preemption")],
)
def test_a_run_that_ends_with_the_allocation_it_was_called_in_is_not_advised_to_requeue(
    foreground: bool, advice: str, tmp_path: Path
) -> None:
    run = RunBuilder(tmp_path / "run").submit(foreground=foreground).allocate().open_attempt(1)
    run.end(RunState.CANCELLED, exit_code=10, reason="terminated", cause="node1 got SIGTERM from outside")
    found = explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0)
    assert [each.startswith(advice) for each in found.advice] == [True]


def test_a_job_that_was_killed_before_its_next_start_was_asked_for_is_to_be_submitted_again(tmp_path: Path) -> None:
    """More starts, as are advised after a preemption that used them up, would not have helped."""
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).end_allocation(1, "preempted")
    cause = "the job was preempted and not requeued, and Slurm killed it before its next start was asked for"
    run.end(RunState.FAILED, exit_code=7, reason="preempted", cause=cause)
    again, saving = explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0).advice
    assert again == "submit the job file again: the script goes on from its last checkpoint"
    assert "a larger KillWait" in saving


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("failed (status 127): setenv LR 1", "write the line in bash, which runs setup whatever your login shell is"),
        ("failed (status 2): source v/bin/activate.csh", "write the line in bash, which runs setup"),
        ("failed (status 1): module load cuda", "read the end of the script's output"),
        ("failed (status 1): source csh.sh", "read the end of the script's output"),
    ],
)
def test_a_setup_line_that_bash_does_not_know_is_advised_about(line: str, advice: str, tmp_path: Path) -> None:
    cause = f"the script ended with exit code 3 before any agent started: hpc_elastic: setup line {line}"
    run = RunBuilder(tmp_path / "run").submit().start_script()
    run.end(RunState.FAILED, exit_code=3, reason="setup_failed", cause=cause, nodes=())
    found = explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0)
    assert [each.startswith(advice) for each in found.advice] == [True]


@pytest.mark.parametrize(
    ("line", "said", "advice"),
    [
        ("module load cuda", "job.sh: line 45: module: command not found", "`module` is no command or function"),
        ("module load cuda", "job.sh: Zeile 45: module: Kommando nicht gefunden.", "`module` is no command"),
        ("module load cuda", "job.sh: ligne 45 : module : commande introuvable", "`module` is no command"),
        ("source env.sh", "env.sh: line 1: module: command not found", "`module` is no command or function"),
        ("cd x && conda activate y", "job.sh: line 45: conda: command not found", "`conda` is no command or function"),
        ("if true; then ml x; fi", "job.sh: line 45: ml: command not found", "`ml` is no command or function"),
        ("timeout 5 ./build", "timeout: failed to run command './build': No such file", "read the end of the script's"),
        ("bash prepare.sh", "bash: prepare.sh: No such file or directory", "read the end of the script's output"),
        ("./prepare.sh", "job.sh: line 45: ./prepare.sh: No such file or directory", "read the end of the script's"),
    ],
)
def test_the_word_that_bash_does_not_know_is_the_one_that_bash_has_named(
    line: str, said: str, advice: str, tmp_path: Path
) -> None:
    failed = f"hpc_elastic: setup line failed (status 127): {line}"
    run = RunBuilder(tmp_path / "run").submit().start_script(f"{said}\n{failed}\n")
    cause = f"the script ended with exit code 3 before any agent started: {failed}"
    run.end(RunState.FAILED, exit_code=3, reason="setup_failed", cause=cause, nodes=())
    found = explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0)
    assert [each.startswith(advice) for each in found.advice] == [True], found.advice


def test_nodes_that_did_not_join_are_no_process_group(tmp_path: Path) -> None:
    root_cause = RootCause(attempt=1, failure_class="rendezvous", line="1 of 2 nodes joined", nodes=("node2",))
    run = start(tmp_path / "run")
    run.end(RunState.FAILED, exit_code=6, reason="nodes_missing", cause="1 of 2 nodes joined", root_cause=root_cause)
    found = explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0)
    assert (found.failure_class, found.meaning) == ("rendezvous", "nodes that did not join")
    assert [line.partition(";")[0] for line in found.advice] == ["read why each node did not join"]


def test_a_job_that_was_made_smaller_than_the_run_needs_is_to_be_left_as_large(tmp_path: Path) -> None:
    cause = "the job has 1 node (node1), and the run needs at least 2 (nodes.min)"
    root_cause = RootCause(attempt=1, failure_class="rendezvous", line=cause)
    run = start(tmp_path / "run")
    run.end(RunState.FAILED, exit_code=6, reason="nodes_missing", cause=cause, root_cause=root_cause)
    found = explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0)
    assert (found.failure_class, found.meaning) == ("rendezvous", "a job of fewer nodes than the run needs")
    assert [line.partition(":")[0] for line in found.advice] == ["lower nodes.min, or submit the job file again"]


def test_a_job_that_the_scheduler_killed_for_its_memory_is_not_the_kernels_work(tmp_path: Path) -> None:
    line = (
        "the scheduler killed all agents with their workers, which went over the job's memory on node2 (400 of 300 MiB)"
    )
    root_cause = RootCause(attempt=1, failure_class="out_of_memory", line=line, node="node2")
    run = start(tmp_path / "run")
    run.end(RunState.FAILED, exit_code=7, reason="out_of_memory", cause=line, root_cause=root_cause)
    found = explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0)
    assert found.meaning == "more memory than the job may have, for which the scheduler kills all of it"
    assert found.advice[0].startswith("ask for more memory (sbatch.mem)")


def test_a_job_that_was_cancelled_in_the_queue_gets_no_advice_about_time_limits(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit()
    assert RunWatch(run.layout, TellingScheduler(JobState.CANCELLED)).look().reason == "terminated"
    assert explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0).advice == ()


def test_a_run_whose_next_start_slurm_refuses_is_to_be_submitted_again(tmp_path: Path) -> None:
    refusal = "sbatch refused the job: QOSMaxSubmitJobPerUserLimit"
    cause = f"the job's time limit was reached; Slurm does not start the job again: {refusal}"
    run = start(tmp_path / "run").end(RunState.FAILED, exit_code=7, reason="time_limit", cause=cause)
    tip, advice = explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0).advice
    assert tip.startswith("as many jobs in the queue as your account or QOS allows")
    assert advice.startswith("mend what Slurm refuses, and submit the job file again")


SCANCEL = "slurmstepd-node1: error: *** JOB 42 ON node1 CANCELLED AT 2026-11-27T13:05:27 ***"


def terminated(root: Path, *lines: str) -> Explanation:
    run = start(root).end(RunState.CANCELLED, exit_code=10, reason="terminated", cause="node1 got SIGTERM from outside")
    run.start_script("\n".join(["hpc_elastic: run directory x", *lines, "hpc-elastic node1: got SIGTERM", ""]))
    return explain(read_explain_facts(run.layout, take_tolerant_snapshot(run.layout)), 0.0)


@pytest.mark.parametrize("nodes", [0, 1024])
def test_a_job_that_was_cancelled_with_scancel_is_said_to_be_and_gets_no_advice(nodes: int, tmp_path: Path) -> None:
    """When the agents have left, srun has written a line for each after that of the `scancel`."""
    ends = (f"srun: error: node{number}: task {number}: Exited with exit code 10" for number in range(nodes))
    explanation = terminated(tmp_path / "run", SCANCEL, *ends)
    assert explanation.cause == "somebody cancelled the job with scancel (node1 got SIGTERM from outside)"
    assert explanation.meaning == "a stop that a person asked for"
    assert (explanation.advice, explanation.excerpts, explanation.files) == ((), (), ())


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (SCANCEL[:-4] + " DUE TO TIME LIMIT ***",),
        (SCANCEL[:-4] + " DUE TO PREEMPTION ***",),
        (SCANCEL, "hpc_elastic: run directory x"),
    ],
    ids=["nothing", "time limit", "preemption", "an earlier start"],
)
def test_what_else_ends_a_job_is_not_taken_for_a_scancel(lines: tuple[str, ...], tmp_path: Path) -> None:
    explanation = terminated(tmp_path / "run", *lines)
    assert explanation.cause == "node1 got SIGTERM from outside"
    assert explanation.advice
