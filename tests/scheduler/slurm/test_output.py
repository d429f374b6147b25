from __future__ import annotations

from dataclasses import replace

import pytest

from hpc_elastic.errors import ExitCode, SchedulerError
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from hpc_elastic.scheduler.slurm import commands, output
from hpc_elastic.scheduler.slurm.output import CommandOutput
from tests.scheduler.slurm.captured import VERSIONS, captured

pytestmark = pytest.mark.parametrize("version", VERSIONS)

# What a release tells otherwise than the first one does: reason and exit code.
_SINCE_24_11 = {"killed": ("RaisedSignal:9(Killed)", "0:9"), "node-fail": ("NodeDown", "0:1")}
OTHERWISE: dict[str, dict[str, tuple[str, str]]] = {
    "slurm-22.05": {},
    "slurm-24.11": _SINCE_24_11,
    "slurm-26.05": _SINCE_24_11,
}


def queue(version: str, case: str) -> list[JobStatus]:
    """The captured jobs, in the order in which they were asked for."""
    capture = captured(version, f"queue-{case}")
    assert capture.command == commands.squeue_command(capture.job_ids)  # else it must be recorded anew
    found = output.parse_queue(capture.output, capture.job_ids)
    return [found[job_id] for job_id in capture.job_ids if job_id in found]


@pytest.mark.parametrize(
    ("case", "state", "reason", "exit_code"),
    [
        ("pending", JobState.PENDING, "Resources", "0:0"),
        ("held", JobState.PENDING, "JobHeldUser", "0:0"),
        ("running", JobState.RUNNING, None, "0:0"),
        ("completing", JobState.COMPLETING, None, "0:0"),
        ("completed", JobState.COMPLETED, None, "0:0"),
        ("failed", JobState.FAILED, "NonZeroExitCode", "3:0"),
        ("killed", JobState.FAILED, "JobLaunchFailure", "0:9"),
        ("cancelled-pending", JobState.CANCELLED, "Resources", "0:0"),
        ("cancelled-running", JobState.CANCELLED, None, "0:9"),
        ("cancelled-by-another", JobState.CANCELLED, None, "0:15"),
        ("requeued", JobState.PENDING, "BeginTime", "0:0"),
        ("preempted", JobState.PREEMPTED, None, "0:15"),
        ("node-fail", JobState.NODE_FAIL, "NodeDown", "0:0"),
        ("timeout", JobState.TIMEOUT, "TimeLimit", "0:15"),
    ],
)
def test_queue_tells_every_state(version: str, case: str, state: JobState, reason: str | None, exit_code: str) -> None:
    (status,) = queue(version, case)
    told = OTHERWISE[version].get(case, (reason, exit_code))
    assert (status.state, status.reason, status.exit_code) == (state, *told)
    assert status.native_state == state.value
    assert status.restarts == (1 if case == "requeued" else 0)


def test_queue_tells_of_an_expedited_requeue_where_slurm_has_it(version: str) -> None:
    if version < "slurm-25.11":
        assert output.parse_state("EXPEDITING") is JobState.PENDING
        return
    (status,) = queue(version, "expediting")
    assert (status.state, status.native_state, status.restarts) == (JobState.PENDING, "EXPEDITING", 1)


def test_queue_names_the_nodes_of_a_running_job(version: str) -> None:
    (status,) = queue(version, "running")
    assert status.nodes == "node[2-3]"
    (status,) = queue(version, "pending")
    assert status.nodes is None


def test_queue_leaves_out_what_slurm_does_not_know(version: str) -> None:
    mixed = queue(version, "mixed")
    assert [status.state for status in mixed] == [JobState.COMPLETED, JobState.RUNNING, JobState.PENDING]
    assert queue(version, "unknown") == []
    assert queue(version, "unknown-two") == []


def test_queue_tells_an_array_by_its_most_urgent_task(version: str) -> None:
    running = queue(version, "array-running")
    assert [status.state for status in running] == [JobState.RUNNING, JobState.RUNNING, JobState.PENDING]
    over = queue(version, "array-over")
    assert [status.state for status in over] == [JobState.FAILED, JobState.COMPLETED, JobState.FAILED]
    assert [status.exit_code for status in over][1:] == ["0:0", "1:0"]


def test_queue_finds_a_task_by_its_own_number(version: str) -> None:
    """In a job, SLURM_JOB_ID is the task's own number and not the array's with an index."""
    capture = captured(version, "queue-array-over")
    first = capture.output.stdout.split("|")
    own, in_array = first[0], first[1]
    found = output.parse_queue(capture.output, [own, in_array])
    assert found[own].state is found[in_array].state is JobState.COMPLETED
    assert found[own].job_id == own


def test_queue_knows_the_tasks_that_were_cancelled_while_they_waited(version: str) -> None:
    """They have one row together, which has the array's name, and are not found by their own."""
    capture = captured(version, "queue-array-rest-cancelled")
    (array,) = capture.job_ids
    tasks = [f"{array}_{number}" for number in range(4)]
    found = output.parse_queue(capture.output, [array, *tasks])
    assert found[array].state is JobState.RUNNING
    assert [found[task].state for task in tasks] == [JobState.RUNNING] * 2 + [JobState.CANCELLED] * 2
    assert found[tasks[3]].job_id == tasks[3]
    assert queue(version, "array-task-cancelled") == []


def test_queue_tells_a_heterogeneous_job_by_the_part_that_was_asked_for(version: str) -> None:
    """A torchrun that a step of one part starts asks about it by the number of the job, which its first part has."""
    capture = captured(version, "queue-heterogeneous")
    (job_id,) = capture.job_ids
    second = str(int(job_id) + 1)
    found = output.parse_queue(capture.output, [job_id, second])
    assert [(found[each].state, found[each].nodes) for each in (job_id, second)] == [
        (JobState.RUNNING, "node1"),
        (JobState.RUNNING, "node2"),
    ]
    assert set(queue(version, "heterogeneous")) == {found[job_id]}


def test_a_job_that_another_cluster_of_the_federation_has_taken_is_not_over(version: str) -> None:
    row = captured(version, "queue-running").output.stdout
    job_id = row.partition("|")[0]
    taken = row.replace("RUNNING", "REVOKED")
    assert not parse(taken, job_id).state.is_terminal
    assert parse(taken, job_id).native_state == "REVOKED"
    for there in ("PENDING", "RUNNING", "COMPLETED"):  # where squeue shows all clusters: what the other one says
        theirs = row.replace("RUNNING", there)
        assert parse(taken + theirs, job_id).state is parse(theirs + taken, job_id).state is JobState(there)


def test_a_job_that_one_of_several_clusters_does_not_know_is_not_over(version: str) -> None:
    """With SLURM_CLUSTERS=a,b squeue asks one after the other, and fails where one does not know the job."""
    row, unknown = captured(version, "queue-running").output.stdout, captured(version, "queue-unknown").output
    job_id = row.partition("|")[0]
    assert unknown.returncode
    assert not unknown.stdout
    found = output.parse_queue(replace(unknown, stdout=row), [job_id])
    assert found[job_id].state is JobState.RUNNING
    away = captured(version, "queue-no-controller").output
    with pytest.raises(SchedulerError, match="Unable to contact"):  # the other one may know it
        output.parse_queue(replace(unknown, stderr=unknown.stderr + away.stderr), [job_id])


def parse(stdout: str, job_id: str) -> JobStatus:
    """What squeue's output says of a job."""
    return output.parse_queue(CommandOutput(returncode=0, stdout=stdout, stderr=""), [job_id])[job_id]


@pytest.mark.parametrize(
    ("case", "left"),
    [
        ("node-marked-fail", {"node1", "node2", "node3", "node4"}),  # sinfo says "fail" of node4, where the job runs
        ("node-silent", {"node1", "node2", "node3", "node4"}),
        ("node-down", {"node1", "node2", "node4"}),
        ("node-back", {"node1", "node2", "node4"}),  # node3 is idle, and free for other jobs
    ],
)
def test_a_job_loses_a_node_for_good_when_slurm_sets_it_down_and_no_sooner(
    version: str, case: str, left: set[str]
) -> None:
    (status,) = queue(version, case)
    assert set(output.nodes_left(status) or ()) == left


@pytest.mark.parametrize("case", ["pending", "completing", "completed", "requeued", "node-fail"])
def test_a_job_that_does_not_run_says_nothing_of_its_nodes(version: str, case: str) -> None:
    (status,) = queue(version, case)
    assert output.nodes_left(status) is None
    assert output.nodes_left(None) is None


@pytest.mark.parametrize(
    ("case", "words", "tip"),
    [
        ("partition", "invalid partition specified: nowhere; Batch job submission failed: Invalid partition", "sinfo"),
        ("nodes", "More processors requested than permitted", "fewer `nodes`"),
        ("memory", "Memory specification can not be satisfied", "memory_per_node"),
        ("gpus", "Requested node configuration is not available", "resources"),
        ("gres", "Invalid generic resource", "%G"),
        ("option", "unrecognized option '--no-such-option=1'", "man sbatch"),
        ("time", "Invalid --time specification", None),
        ("nodelist", "Invalid node name specified", None),
        ("array", "Invalid job array specification", "MaxArraySize"),
        ("reservation", "Requested reservation is invalid", None),
        ("script", "Unable to open file /no/such/job.sh", None),
        ("no-controller", "Unable to contact slurm controller", "try again later"),
        ("controller-off", "Unable to contact slurm controller", "try again later"),
    ],
)
def test_submission_that_is_refused_is_told_in_slurms_words(
    version: str, case: str, words: str, tip: str | None
) -> None:
    with pytest.raises(SchedulerError) as caught:
        output.parse_submission(captured(version, f"submit-{case}").output)
    assert caught.value.message.startswith("sbatch refused the job: ")
    assert words in caught.value.message
    assert "error: " not in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.exit_code is ExitCode.SCHEDULER
    assert tip is None or tip in (caught.value.tip or "")


def test_submission_after_an_unknown_job_is_refused_by_later_releases(version: str) -> None:
    told = captured(version, "submit-dependency").output
    if version == "slurm-22.05":  # the job waits for ever
        assert output.parse_submission(told).isdigit()
    else:
        with pytest.raises(SchedulerError, match=r"sbatch refused the job: .*Job dependency problem"):
            output.parse_submission(told)


def test_submission_gives_the_job_id(version: str) -> None:
    assert output.parse_submission(captured(version, "submit-accepted").output).isdigit()
    on_a_cluster = CommandOutput(returncode=0, stdout="123;here\n", stderr="")
    assert output.parse_submission(on_a_cluster) == "123"


# What the sbatch of a large site prints first: a script around Slurm's own, which checks the job.
BANNER = """
-----------------------------------------------------------------
          Welcome to the Stampede3 Supercomputer
-----------------------------------------------------------------

No reservation for this job
--> Verifying valid submit host (login4)...OK
--> Checking available allocation (TG-AST090040)...OK
"""


@pytest.mark.parametrize(
    "last",
    ["519605\n", "519605;stampede3\n", "Submitted batch job 519605\n", "Submitted batch job 519605 on cluster a\n\n"],
)
def test_submission_gives_the_job_id_behind_a_sites_words(version: str, last: str) -> None:
    """The job is in the queue: to take it for refused removes its run directory."""
    wrapper = CommandOutput(returncode=0, stdout=BANNER + last, stderr="")
    assert output.parse_submission(wrapper) == "519605"


@pytest.mark.parametrize(
    "printed",
    [
        "Submitted batch job 519605\n\nEstimated cost: 12 credits\n",
        "Submitted batch job 519605 on cluster a\nCredits left:\n",
        "\x1b[1;32m519605\n\x1b[0m",
    ],
)
def test_submission_gives_the_job_id_before_a_sites_words_and_in_colours(version: str, printed: str) -> None:
    wrapper = CommandOutput(returncode=0, stdout=printed, stderr="")
    assert output.parse_submission(wrapper) == "519605"


@pytest.mark.parametrize(
    "printed", ["519605\n", "Submitted batch job 519605\n", "Submitted batch job 519605\nmail: no\n"]
)
def test_submission_is_unclear_if_sbatch_fails_with_a_job_id(version: str, printed: str) -> None:
    with pytest.raises(output.UnclearSubmissionError, match=r"sbatch ended with 1, but printed '.*519605"):
        output.parse_submission(CommandOutput(returncode=1, stdout=printed, stderr=""))


def test_submission_is_refused_in_the_words_on_standard_output_if_there_are_no_others(version: str) -> None:
    wrapper = CommandOutput(returncode=1, stdout=BANNER + "\x1b[31mFAILED: no account\x1b[0m\n", stderr="\n")
    with pytest.raises(SchedulerError, match=r"^sbatch refused the job: .*; FAILED: no account$"):
        output.parse_submission(wrapper)


def test_a_job_is_found_by_its_folder_unless_there_are_several(version: str) -> None:
    listed = CommandOutput(
        returncode=0, stdout="7|/home/a b|\n8_[0-3]|/runs/x|\n8_4|/runs/x|\n9|/c|\n10|/c|\n", stderr=""
    )
    found = [output.parse_submitted(listed, [folder]) for folder in ("/home/a b", "/runs/x", "/c", "/nowhere")]
    assert found == ["7", "8", None, None]


@pytest.mark.parametrize("printed", ["Welcome!\n", BANNER, "", "12\nbut not now\n", "12 13\n", "-12\n", "\u0661\n"])
def test_submission_rejects_output_without_a_job_id(version: str, printed: str) -> None:
    wrapper = CommandOutput(returncode=0, stdout=printed, stderr="")
    with pytest.raises(SchedulerError, match="no job id"):
        output.parse_submission(wrapper)


@pytest.mark.parametrize("case", ["no-controller", "controller-off"])
def test_queue_rejects_the_silence_of_a_controller(version: str, case: str) -> None:
    with pytest.raises(SchedulerError, match=r"squeue does not answer: .*Unable to contact") as caught:
        queue(version, case)
    assert caught.value.tip == "the controller is down or cannot be reached from here: try again later"


@pytest.mark.parametrize("case", ["done", "unknown", "pending"])
def test_cancellation_is_fine_if_the_job_is_over(version: str, case: str) -> None:
    output.parse_cancellation(captured(version, f"cancel-{case}").output, "1")


def test_cancellation_of_another_users_job_is_rejected(version: str) -> None:
    with pytest.raises(SchedulerError, match=r"scancel could not end job 1: .*Access/permission denied"):
        output.parse_cancellation(captured(version, "cancel-denied").output, "1")


@pytest.mark.parametrize("case", ["no-controller", "controller-off"])
def test_cancellation_rejects_the_silence_of_a_controller(version: str, case: str) -> None:
    with pytest.raises(SchedulerError, match=r"scancel could not end job 1: .*Unable to contact"):
        output.parse_cancellation(captured(version, f"cancel-{case}").output, "1")


def test_a_requeue_says_nothing_if_it_was_taken(version: str) -> None:
    output.parse_requeue(captured(version, "requeue").output, "1")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("held", "Job is pending execution"),
        ("unknown", "Invalid job id specified"),
        ("denied", "Access/permission denied"),
        ("no-controller", "Unexpected message received"),
        ("controller-off", "Unexpected message received"),
    ],
)
def test_a_requeue_that_slurm_refuses_is_rejected_in_its_words(version: str, case: str, words: str) -> None:
    with pytest.raises(SchedulerError, match=f"scontrol could not requeue job 1: .*{words}"):
        output.parse_requeue(captured(version, f"requeue-{case}").output, "1")


def test_accounting_is_none_if_it_is_disabled(version: str) -> None:
    capture = captured(version, "accounting-disabled")
    assert output.parse_accounting(capture.output, capture.job_ids) is None


@pytest.mark.parametrize(
    ("native", "state"),
    [
        ("CONFIGURING", JobState.PENDING),
        ("EXPEDITING", JobState.PENDING),
        ("POWER_UP_NODE", JobState.PENDING),
        ("REQUEUE_HOLD", JobState.PENDING),
        ("OUT_OF_MEMORY", JobState.FAILED),
        ("DEADLINE", JobState.TIMEOUT),
        ("CANCELLED+", JobState.CANCELLED),
        ("SUSPENDED", JobState.RUNNING),
        ("A_STATE_OF_SLURM_30", JobState.RUNNING),
    ],
)
def test_state_of_a_word_that_is_not_ours(version: str, native: str, state: JobState) -> None:
    assert output.parse_state(native) is state


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("0", "0:0"),  # until 22.05, the bare wait status
        ("768", "3:0"),
        ("15", "0:15"),
        ("0:0", "0:0"),  # since 23.02
        ("3:0", "3:0"),
        ("0:9", "0:9"),
    ],
)
def test_queue_reads_the_exit_code_of_every_slurm(version: str, printed: str, shown: str) -> None:
    row = f"7|7|FAILED|0|{printed}|node1|NonZeroExitCode|\n"
    found = output.parse_queue(CommandOutput(returncode=0, stdout=row, stderr=""), ["7"])
    assert found["7"].exit_code == shown


@pytest.mark.parametrize("text", ["", "local-1-2", "1,2", "1_2_3", "-1", "foo", "1\n", "\uff11"])
def test_job_id_rejects_what_would_spoil_a_question(version: str, text: str) -> None:
    assert not output.is_job_id(text)


@pytest.mark.parametrize(
    ("case", "is_up"), [("ping", True), ("ping-no-controller", False), ("ping-controller-off", False)]
)
def test_ping_tells_whether_a_controller_answers(version: str, case: str, is_up: bool) -> None:
    capture = captured(version, case)
    assert capture.command == commands.ping_command()
    assert output.parse_ping(capture.output) is is_up


def test_ping_is_answered_if_the_backup_controller_is_up(version: str) -> None:
    lines = "Slurmctld(primary) at one is DOWN\nSlurmctld(backup) at two is UP\n"
    assert output.parse_ping(CommandOutput(returncode=0, stdout=lines, stderr=""))
