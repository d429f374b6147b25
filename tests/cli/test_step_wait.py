"""A wait for srun's step in an allocation: when Slurm is asked about it, and what its answers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hpc_elastic.cli.step_wait import StepWait
from hpc_elastic.errors import SchedulerError
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.protocol import JobState, JobStatus

LAUNCHES = "hpc_elastic: starting an agent on each of 2 nodes (start 0)\n"
WAITS = "srun: Job 42 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
GAVE_UP = "srun: error: Unable to create step for job 42: Job/step already completing or completed\n"
CHECK = "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 42\n"
EXPIRED = f"srun: error: Slurm job 42 has expired\n{CHECK}"
UNKNOWN = f"srun: error: Unable to confirm allocation for job 42: Invalid job id specified\n{CHECK}"


class Slurm:
    """Answers one question after the other; `None` is silence."""

    def __init__(self, *states: JobState | None, reason: str = "None") -> None:
        self.states = list(states)
        self.reason = reason
        self.asked = 0

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        self.asked += 1
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state is None:
            raise SchedulerError("no answer")
        return {
            each: JobStatus(job_id=each, state=state, native_state=state.value, reason=self.reason) for each in job_ids
        }


class Waiting:
    """A run whose script has written these lines, on a clock of its own."""

    def __init__(self, folder: Path, slurm: Slurm, output: str = LAUNCHES) -> None:
        self.layout, self.slurm, self.now = RunLayout(folder), slurm, 1000.0
        Path(self.layout.allocations).mkdir(parents=True)
        Path(self.layout.script_output("42")).write_text(f"hpc_elastic: run directory here\n{output}")
        self.wait = StepWait(self.layout, "42", slurm, clock=lambda: self.now)

    def look_for(self, seconds: int, *, has_srun_ended: bool = False) -> JobStatus | None:
        """Look once a second, as often as there are seconds, or until the end is found."""
        for _ in range(seconds):
            if (found := self.wait.find_end(has_srun_ended=has_srun_ended)) is not None:
                return found
            self.now += 1
        return None


@pytest.mark.parametrize(
    "words",
    [LAUNCHES, LAUNCHES + WAITS, LAUNCHES + "srun: warning: no core binding here\n"],
    ids=["silent", "told", "warned"],
)
def test_asks_slurm_seldom_while_srun_waits_for_its_step(words: str, tmp_path: Path) -> None:
    waiting = Waiting(tmp_path, Slurm(JobState.RUNNING), words)
    assert waiting.look_for(4) is None
    assert waiting.slurm.asked == 0, "srun may only just have been called"
    assert waiting.look_for(60) is None
    assert 6 <= waiting.slurm.asked <= 8


@pytest.mark.parametrize(
    "words", ["loading modules\n", LAUNCHES + "node1: 2 nodes have joined\n", LAUNCHES + "srun: Step created\n"]
)
def test_asks_slurm_nothing_before_srun_is_called_and_after_it_has_a_step(words: str, tmp_path: Path) -> None:
    waiting = Waiting(tmp_path, Slurm(JobState.CANCELLED), words)
    assert waiting.look_for(60) is None
    assert waiting.look_for(60, has_srun_ended=True) is None
    assert waiting.slurm.asked == 0


def test_asks_slurm_nothing_once_an_agent_has_claimed_the_allocation(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path, Slurm(JobState.CANCELLED))
    claim = Path(waiting.layout.allocation(1))
    claim.parent.mkdir(parents=True, exist_ok=True)
    claim.write_text("{}")
    assert waiting.look_for(60) is None
    assert waiting.slurm.asked == 0


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        (JobState.CANCELLED, "None", "CANCELLED"),
        (JobState.COMPLETING, "None", "CANCELLED"),
        (JobState.COMPLETING, "TimeLimit", "TIMEOUT"),
        (JobState.TIMEOUT, "TimeLimit", "TIMEOUT"),
        (JobState.COMPLETED, "None", "CANCELLED"),
        (JobState.FAILED, "NonZeroExitCode", "CANCELLED"),
        (JobState.NODE_FAIL, "None", "NODE_FAIL"),
        (JobState.GONE, "None", "CANCELLED"),
    ],
)
def test_an_allocation_that_has_ended_is_told_as_that_at_the_next_question(
    state: JobState, reason: str, told: str, tmp_path: Path
) -> None:
    waiting = Waiting(tmp_path, Slurm(JobState.RUNNING, state, reason=reason))
    found = waiting.look_for(20)
    assert found is not None
    assert (found.state.value, waiting.slurm.asked) == (told, 2)


@pytest.mark.parametrize("state", [None, JobState.GONE], ids=["silent", "never known"])
def test_what_slurm_does_not_answer_decides_nothing(state: JobState | None, tmp_path: Path) -> None:
    waiting = Waiting(tmp_path, Slurm(state))
    assert waiting.look_for(60) is None
    assert waiting.slurm.asked > 4
    assert waiting.look_for(1, has_srun_ended=True) is None


@pytest.mark.parametrize("words", [GAVE_UP, EXPIRED, UNKNOWN], ids=["waited", "expired", "unknown"])
def test_slurm_is_asked_once_when_srun_has_given_up(words: str, tmp_path: Path) -> None:
    waiting = Waiting(tmp_path, Slurm(JobState.CANCELLED), LAUNCHES + words)
    found = waiting.look_for(1, has_srun_ended=True)
    assert found is not None
    assert found.state is JobState.CANCELLED
    goes_on = Waiting(tmp_path / "other", Slurm(JobState.RUNNING), LAUNCHES + words)
    assert goes_on.look_for(30, has_srun_ended=True) is None, "srun had another reason"
    assert goes_on.slurm.asked == 1
