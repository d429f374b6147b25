"""Runs the script as a child of this process, for `hpc-elastic run`: a scheduler with one job, and Ctrl-C.

Theory of operation: the child gets a session of its own, so that the terminal's Ctrl-C reaches this process alone, and
its Ctrl-backslash, which is taken for a Ctrl-C: by default it would end this process and leave the run without it.
The first one asks the agents to stop with grace, as `hpc-elastic cancel` does; the second sends the script TERM,
which it passes on; the third kills its session. TERM and HUP of this process go to the script as TERM; below `nohup` a
HUP stays ignored, for the run is to outlive the terminal. A script whose allocation has ended before srun got a step in
it is killed: its srun would stay for minutes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from hpc_elastic.api.requests import ask_to_stop
from hpc_elastic.cli.step_wait import StepWait
from hpc_elastic.errors import RunDirectoryError, SchedulerError
from hpc_elastic.job_ids import ARRAY_MARK
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.printable import printable_line
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.environment import scrub_environment
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from hpc_elastic.scheduler.slurm.step import PREFIX

SETTLE_S = 5.0  # the script has waited for all agents: none of them writes any more
# A local job's id holds the shell's process id, and its output's name holds the id: hence the path comes through
# standard input, and `exec` keeps the process. With -p this shell, which is not the job's, leaves BASH_ENV to the one
# that is.
_STARTER = 'set +p; IFS= read -r output && exec bash "$1" >>"$output" 2>&1 </dev/null'


class ForegroundScheduler:
    """Starts one script and watches it; the job is this process's child.

    Args:
        allocation: the id of the Slurm job that we are in; None outside of one.
    """

    name = "foreground"
    answers_at_once = True

    def __init__(self, allocation: str | None) -> None:
        self._allocation = allocation
        self._child: subprocess.Popen[bytes] | None = None
        self._step_wait: StepWait | None = None
        self._end: JobStatus | None = None  # of the allocation, in which no agent was started

    def submit(self, plan: LaunchPlan, script: str) -> str:
        """Start the script and return its job id."""
        command = ["bash", "-p", "-c", _STARTER, "hpc-elastic", script]
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                cwd=plan.run_dir,
                env=script_environment(os.environ, is_in_allocation=self._allocation is not None),
                start_new_session=True,
            )
        except OSError as error:
            raise SchedulerError(f"cannot start bash: {error.strerror}", tip="bash must be on PATH") from error
        job_id = self._allocation or local_job_id(self._child.pid)
        if self._allocation is not None:
            self._step_wait = StepWait(RunLayout(plan.run_dir), job_id)
        if self._child.stdin is not None:
            with self._child.stdin as starter:
                starter.write(RunLayout(plan.run_dir).script_output(job_id).encode() + b"\n")
        return job_id

    @property
    def has_started(self) -> bool:
        """Whether the script was started."""
        return self._child is not None

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the status of the job: whether the script runs, or how it ended, or the allocation without it."""
        code = self._child.poll() if self._child else None
        if self._step_wait is not None and self._end is None and code != 0:
            self._end = self._step_wait.find_end(has_srun_ended=code is not None)
            if self._end is not None:
                self.signal(signal.SIGKILL)
        return {job_id: self._end or _status(job_id, code) for job_id in job_ids}

    def cancel(self, job_id: str) -> None:  # noqa: ARG002  (there is one job)
        """Send the script TERM."""
        self.signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until the script has ended; after the run's result it only cleans up."""
        if self._child is not None:
            self._child.wait()

    def signal(self, number: int) -> None:
        """Send the script a signal; KILL goes to its whole session."""
        if self._child is None or self._child.poll() is not None:
            return
        if number == signal.SIGKILL:
            os.killpg(self._child.pid, number)
        else:
            self._child.send_signal(number)


def script_environment(environ: Mapping[str, str], *, is_in_allocation: bool) -> dict[str, str]:
    """Return the script's environment: no other job's identity, but inside an allocation that of this job."""
    ours = {name: environ[name] for name in environ if is_in_allocation and name.startswith((PREFIX, ARRAY_MARK))}
    return scrub_environment(environ) | ours


def local_job_id(process_id: int) -> str:
    """Return the job id `local-<pid>-<start time>`, as the script itself computes it."""
    with open(f"/proc/{process_id}/stat", "rb") as file:
        fields = file.read().rsplit(b") ", 1)[1].split()
    return f"local-{process_id}-{fields[19].decode()}"  # field 22 of proc(5)


@contextmanager
def stop_on_signals(layout: RunLayout, scheduler: ForegroundScheduler) -> Iterator[None]:
    """Make Ctrl-C, Ctrl-backslash, TERM and HUP stop the run instead of this process; the watch goes on.

    A HUP that is ignored, as below `nohup`, stays ignored: a shell whose terminal is closed sends one all the same.
    """
    interrupts = iter(_interrupt_steps(layout, scheduler))

    def interrupt(*_: object) -> None:
        next(interrupts, lambda: scheduler.signal(signal.SIGKILL))()

    handlers = {
        signal.SIGINT: interrupt,
        signal.SIGQUIT: interrupt,
        signal.SIGTERM: lambda *_: scheduler.signal(signal.SIGTERM),
    }
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = handlers[signal.SIGTERM]
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def quit_as_interrupt() -> Iterator[None]:
    """Make Ctrl-backslash do what Ctrl-C does while the block runs, also where that is held back for a moment."""
    previous = signal.signal(signal.SIGQUIT, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGQUIT, previous)


def _interrupt_steps(layout: RunLayout, scheduler: ForegroundScheduler) -> Sequence[Callable[[], None]]:
    def ask() -> None:
        _say("stopping, with grace; Ctrl-C again stops at once")
        try:
            ask_to_stop(layout, "Ctrl-C in the foreground")
            is_asked = bool(store.list_numbers(layout.allocations))  # by now some agent can see the request
        except RunDirectoryError as error:
            _say(f"{printable_line(error.message)}: the agents get a TERM instead")
            is_asked = False
        if not is_asked:
            scheduler.signal(signal.SIGTERM)

    def terminate() -> None:
        _say("stopping at once; Ctrl-C again kills")
        scheduler.signal(signal.SIGTERM)

    return ask, terminate


def _say(line: str) -> None:
    """Write a line to descriptor 2: `sys.stderr` refuses a signal handler's line while it writes another one."""
    with contextlib.suppress(OSError):
        os.write(2, f"\nhpc-elastic: {line}\n".encode())


def _status(job_id: str, code: int | None) -> JobStatus:
    if code is None:
        return JobStatus(job_id=job_id, state=JobState.RUNNING, native_state="RUNNING")
    if code < 0 or code == 128 + signal.SIGTERM:
        return JobStatus(job_id=job_id, state=JobState.CANCELLED, native_state="CANCELLED", exit_code=f"0:{abs(code)}")
    state = JobState.FAILED if code else JobState.COMPLETED
    return JobStatus(job_id=job_id, state=state, native_state=state.value, exit_code=f"{code}:0")
