"""What squeue says about the end of a job, as Slurm 22.05 to 26.05 print it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.protocol import JobOutlook, JobState
from hpc_elastic.scheduler.slurm import from_node
from hpc_elastic.scheduler.slurm.commands import host_command, outlook_command
from hpc_elastic.scheduler.slurm.output import CommandOutput, parse_outlook, parse_reservation, parse_seconds_left

NEVER = float("inf")


def told(row: str, *, returncode: int = 0, stderr: str = "") -> JobOutlook:
    return parse_outlook(CommandOutput(returncode=returncode, stdout=row, stderr=stderr))


def test_a_running_job_has_so_much_time_left() -> None:
    row = "RUNNING|0|1:59|0:01|2026-11-23T07:21:28|2026-11-23T07:23:28|N/A|(null)|None|\n"
    assert told(row) == JobOutlook(state=JobState.RUNNING, restarts=0, seconds_left=119)


def test_a_preempted_job_has_its_grace_left_and_not_its_time_limit() -> None:
    row = "RUNNING|0|1:57|0:04|2026-11-23T07:21:28|2026-11-23T07:21:35|2026-11-23T07:21:30|(null)|None|\n"
    assert told(row) == JobOutlook(state=JobState.RUNNING, restarts=0, seconds_left=3, is_preempted=True)


def test_a_preempted_job_whose_grace_is_over_has_no_time_left() -> None:
    row = "RUNNING|0|1:50|0:10|2026-11-23T07:21:28|2026-11-23T07:21:35|2026-11-23T07:21:30|(null)|None|\n"
    assert told(row).seconds_left == 0


def test_a_job_without_a_limit_never_ends() -> None:
    row = "RUNNING|0|UNLIMITED|0:01|2026-11-23T07:21:28|N/A|N/A|(null)|None|\n"
    assert told(row).seconds_left == NEVER


# As 22.05 and 26.05 print it, shortened.
RESERVED = (
    "ReservationName=r7 StartTime=2026-11-23T07:21:00 EndTime=2026-11-23T07:22:00 Duration=00:01:00 Flags={flags} "
)
IN_RESERVATION = "RUNNING|0|1:50|0:10|2026-11-23T07:21:28|2026-11-23T07:23:28|N/A|r7|None|\n"


@pytest.mark.parametrize(
    ("flags", "overrun", "seconds_left"),
    [
        ("SPEC_NODES", "0 min", 22),
        ("SPEC_NODES", "1 min", 82),
        ("SPEC_NODES", "5 min", 110),
        ("SPEC_NODES", "UNLIMITED", 110),
        ("FLEX,SPEC_NODES", "0 min", 110),
    ],
)
def test_a_job_ends_with_its_reservation_if_that_is_before_its_time_limit(
    flags: str, overrun: str, seconds_left: float
) -> None:
    shown = CommandOutput(returncode=0, stdout=RESERVED.format(flags=flags), stderr="")
    ends = parse_reservation(shown, {"ResvOverRun": overrun})
    outlook = parse_outlook(CommandOutput(returncode=0, stdout=IN_RESERVATION, stderr=""), reserved_until=ends)
    assert (outlook.seconds_left, outlook.ends_with_reservation) == (seconds_left, seconds_left < 110)
    assert outlook.reservation == "r7"


@pytest.mark.parametrize(("returncode", "shown"), [(1, "Reservation r7 not found"), (0, "EndTime=soon"), (0, "")])
def test_a_reservation_that_is_not_there_ends_no_job(returncode: int, shown: str) -> None:
    assert parse_reservation(CommandOutput(returncode=returncode, stdout=shown, stderr=""), {}) is None


def test_a_job_that_ends_because_its_script_was_killed_is_told_from_others() -> None:
    row = "{state}|0|1:50|0:10|2026-11-23T07:21:28|2026-11-23T07:23:28|N/A|(null)|{reason}|\n"
    assert told(row.format(state="COMPLETING", reason="RaisedSignal:9(Killed)")).is_script_killed
    assert told(row.format(state="COMPLETING", reason="JobLaunchFailure")).is_script_killed  # 22.05
    assert not told(row.format(state="COMPLETING", reason="RaisedSignal:15(Terminated)")).is_script_killed
    assert not told(row.format(state="COMPLETING", reason="None")).is_script_killed


class Controller:
    """Answers what is asked of a job whose script was killed."""

    def __init__(self, host: str, *, reason: str = "RaisedSignal:9(Killed)") -> None:
        self._host = host
        self._reason = reason
        self.asked = 0

    def __call__(
        self, command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float, cwd: str | None = None
    ) -> CommandOutput:
        self.asked += 1
        if list(command) == host_command("7"):
            return CommandOutput(returncode=0 if self._host else 1, stdout=self._host, stderr="")
        row = f"COMPLETING|0|1:50|0:10|2026-11-23T07:21:28|2026-11-23T07:23:28|N/A|(null)|{self._reason}|\n"
        return CommandOutput(returncode=0, stdout=row, stderr="")


HOST = "JobId=7 JobName=a EndTime={end} ReqNodeList=(null) NodeList={nodes} BatchHost=node1 Command=x NodeList=node1\n"


@pytest.mark.parametrize(
    ("resized", "nodes", "is_lost"),
    [
        ("2026-11-23T07:23:27", "node[2-3]", True),  # node1 was set DOWN
        ("2026-11-23T07:23:28", "(null)", True),  # likewise, and the others have ended
        ("", "node[1-3]", False),  # scancel --batch --signal=KILL
        ("", "node3", False),  # likewise, when two nodes have ended
        ("2026-11-23T07:21:28", "node[1,3]", False),  # likewise, and node2 was lost before
        ("2026-11-23T07:21:28", "node3", False),  # likewise, when node1 has ended, too
    ],
)
def test_a_job_whose_script_was_killed_has_lost_its_node_if_slurm_has_taken_it(
    resized: str, nodes: str, is_lost: bool
) -> None:
    """The reason is the same: `RaisedSignal:9(Killed)`, of 22.05 `JobLaunchFailure`."""
    host = HOST.format(end="2026-11-23T07:23:28", nodes=nodes)
    outlook = from_node.outlook("7", run=Controller(f"ResizeTime={resized} {host}" if resized else host))
    assert (outlook.is_script_killed, outlook.has_lost_node) == (True, is_lost)


@pytest.mark.parametrize(
    "host", ["", "JobId=7\n", HOST.format(end="soon", nodes="a"), HOST.format(end="", nodes="a[1-")]
)
def test_what_became_of_the_node_of_a_killed_script_is_unknown_if_slurm_does_not_say(host: str) -> None:
    with pytest.raises(SchedulerError, match="scontrol"):
        from_node.outlook("7", run=Controller(host))


def test_the_node_of_a_script_that_was_not_killed_is_not_asked_for() -> None:
    controller = Controller("", reason="None")
    assert not from_node.outlook("7", run=controller).has_lost_node
    assert controller.asked == 1


@pytest.mark.parametrize("word", ["INVALID", "NOT_SET", "N/A", ""])
def test_time_left_that_slurm_does_not_know_is_unknown(word: str) -> None:
    assert told(f"RUNNING|0|{word}|0:01|2026-11-23T07:21:28|N/A|N/A|(null)|None|\n").seconds_left is None


def test_a_requeued_job_has_one_more_start() -> None:
    row = "COMPLETING|1|2:00|0:00|N/A|N/A|2026-11-23T07:22:44|(null)|None|\n"
    outlook = told(row)
    assert (outlook.state, outlook.restarts, outlook.is_preempted) == (JobState.COMPLETING, 1, True)


@pytest.mark.parametrize(
    "row", ["TIMEOUT|0|0:00|1:00|N/A|N/A|N/A|(null)|None|\n", "COMPLETING|0|0:00|1:00|N/A|N/A|N/A|(null)|TimeLimit|\n"]
)
def test_a_job_that_the_time_limit_ended_is_out_of_time(row: str) -> None:
    assert told(row).is_out_of_time


@pytest.mark.parametrize(
    ("row", "has_lost_node"),
    [
        ("COMPLETING|0|4:00|1:00|N/A|N/A|N/A|(null)|NodeDown|\n", True),
        ("NODE_FAIL|0|4:00|1:00|N/A|N/A|N/A|(null)|None|\n", True),
        ("RUNNING|0|4:00|1:00|N/A|N/A|N/A|(null)|NodeDown|\n", False),  # it goes on with the others
        ("COMPLETING|0|4:00|1:00|N/A|N/A|N/A|(null)|None|\n", False),
    ],
)
def test_a_job_that_slurm_ends_for_a_node_is_known(row: str, has_lost_node: bool) -> None:
    assert told(row).has_lost_node is has_lost_node


@pytest.mark.parametrize(
    "row",
    [
        "",
        "RUNNING|0|1:59\n",
        "RUNNING|x|1:59|0:01|N/A|N/A|N/A|(null)|None|\n",
        "RUNNING|0|soon|0:01|N/A|N/A|N/A|(null)|None|\n",
    ],
)
def test_an_answer_that_cannot_be_read_is_refused(row: str) -> None:
    with pytest.raises(SchedulerError):
        told(row)


def test_a_controller_that_does_not_answer_says_nothing() -> None:
    with pytest.raises(SchedulerError, match="Unable to contact slurm controller"):
        told("", returncode=1, stderr="slurm_load_jobs error: Unable to contact slurm controller (connect failure)")


@pytest.mark.parametrize(("text", "seconds"), [("59", None), ("0:59", 59), ("1:00:00", 3600), ("2-01:00:00", 176_400)])
def test_squeues_times_are_read(text: str, seconds: float | None) -> None:
    if seconds is None:
        with pytest.raises(ValueError, match="expected a duration"):
            parse_seconds_left(text)
    else:
        assert parse_seconds_left(text) == seconds


def test_one_task_of_an_array_is_asked_about() -> None:
    assert "--jobs=12_3" in outlook_command("12_3")
    assert "--array" in outlook_command("12_3")
