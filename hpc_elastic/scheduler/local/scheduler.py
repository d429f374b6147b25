"""This machine as a scheduler: a job is the script's process, its session, and their descendants.

Theory of operation: a job id is `local-PID-START`, of the bash that runs the script, so that the
script itself (from `$$`) and the process that started it know the id without a file between them. The
script is held back until its output file, which is named after the id, is in place. No job table is kept:
a job's status comes from /proc, or from the file `exit_code` in the run directory. The tasks of an
array (`local-PID-START_TASK`) are started by the array's script; `tasks.py` says more.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from hpc_elastic.errors import SchedulerError
from hpc_elastic.job_ids import LOCAL_PREFIX, split_task_id
from hpc_elastic.processes import Process, find_process, living_processes, send_signal, with_descendants
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.store import FILE_MODE, file_system_errors
from hpc_elastic.scheduler.environment import scrub_environment
from hpc_elastic.scheduler.local.tasks import WaitingTasks, carries
from hpc_elastic.scheduler.protocol import JobState, JobStatus

if TYPE_CHECKING:  # `status` does not need it, and may take only 50 ms in all
    from hpc_elastic.plan.launch_plan import LaunchPlan

_JOB_ID = re.compile(LOCAL_PREFIX + r"([0-9]{1,10})-([0-9]{1,20})")
# exec keeps process id and start time. The script starts only after a line on standard input, so not if the submitter
# died before it sent one. With -p this shell, which is not the job's, leaves BASH_ENV to the one that is.
_LAUNCHER = 'set +p; cd -- "$1" && read -r go && exec bash "$0" </dev/null'
_POLL_S = 0.05
_BOUND_AFTER_KILL_S = 5.0


class LocalScheduler:
    """Runs jobs on this machine, without a queue.

    Args:
        run_dir: the run directory, whose `exit_code` tells how a job ended that this object did not start.
        kill_wait_s: the time between TERM and KILL in `cancel`, as Slurm's KillWait.
    """

    name = "local"
    answers_at_once = True
    _children: ClassVar[dict[int, tuple[LocalScheduler, str]]] = {}  # by child's id: its scheduler and job id

    def __init__(self, *, run_dir: str | None = None, kill_wait_s: float = 30.0) -> None:
        self._run_dir = run_dir
        self._kill_wait_s = kill_wait_s
        self._wait_status: dict[str, int] = {}  # of the jobs that this object started

    def submit(self, plan: LaunchPlan, script: str) -> str:  # noqa: ARG002 - Slurm's twin needs the plan
        """Start the script in a session of its own, which outlives this process.

        Returns:
            The job id.

        Raises:
            SchedulerError: it cannot be started.
            FileSystemError: its output cannot be made in the run directory.
        """
        self._collect()
        layout = RunLayout(os.path.dirname(script))
        temporary = os.path.join(layout.root, f".local.{os.urandom(6).hex()}.tmp")
        with file_system_errors(layout.root):
            output = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
        try:
            job_id = self._start(script, output, lambda job_id: _rename(temporary, layout.script_output(job_id)))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(output)
        return job_id

    def _start(self, script: str, output: int, name_output: Callable[[str], None]) -> str:
        """Start the script once its output has got the name that its job id says; return the id."""
        try:
            pid, go = _spawn(script, output)
        except OSError as error:
            raise SchedulerError(f"cannot start bash {script}: {error.strerror or error}") from error
        try:
            job_id = _job_id(pid)
            self._children[pid] = (self, job_id)
            name_output(job_id)
            os.write(go, b"\n")
        finally:
            os.close(go)  # without its line the launcher ends
        return job_id

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the status of these jobs; a job that ended and left no exit code is GONE."""
        return {job_id: self._status(job_id) for job_id in job_ids}

    def cancel_pending(self, job_id: str) -> None:
        """Withdraw an array's waiting tasks, so that no more of them start; running tasks go on."""
        if waiting := self._waiting_tasks(job_id):
            for task in waiting.all():
                waiting.withdraw(task)

    def cancel(self, job_id: str) -> None:
        """End a job and all its processes: TERM to its session, a bounded wait, then KILL to all of them.

        The waiting tasks of an array are withdrawn first, because a task that ends makes room for the next one.

        Raises:
            SchedulerError: a process cannot be killed.
        """
        array, task = split_task_id(job_id) or (job_id, None)
        if task is None:
            self.cancel_pending(array)
        elif waiting := self._waiting_tasks(array):
            waiting.withdraw(task)
        for process in _session(job_id, living_processes()):
            _signal(process, signal.SIGTERM)
        if self._wait_for_end(job_id, self._kill_wait_s):
            return
        end = time.monotonic() + _BOUND_AFTER_KILL_S
        while left := _members(job_id):
            if time.monotonic() > end:
                pids = ", ".join(str(process.pid) for process in left)
                raise SchedulerError(
                    f"processes {pids} of {job_id} are still there {_BOUND_AFTER_KILL_S:g} s after KILL",
                    tip="they may hang in the kernel: `ps -o pid,stat,wchan,cmd -p PID` says where",
                )
            for process in left:
                _signal(process, signal.SIGKILL)
            self._collect()
            time.sleep(_POLL_S)

    def _wait_for_end(self, job_id: str, within_s: float) -> bool:
        end = time.monotonic() + within_s
        while _members(job_id):
            if time.monotonic() > end:
                return False
            self._collect()
            time.sleep(_POLL_S)
        return True

    def _status(self, job_id: str) -> JobStatus:
        self._collect()
        array, task = split_task_id(job_id) or (job_id, None)
        waiting = self._waiting_tasks(array) if task is not None else None
        if task is not None and waiting and (waiting.has(task) or not waiting.is_in_place):
            return JobStatus(job_id=job_id, state=JobState.PENDING, native_state="waiting")
        if task is None and _script_process(job_id):
            return JobStatus(job_id=job_id, state=JobState.RUNNING, native_state="running")
        if _session(job_id, living_processes()):
            state, word = (JobState.COMPLETING, "script ended") if task is None else (JobState.RUNNING, "running")
            return JobStatus(job_id=job_id, state=state, native_state=word)
        code = self._exit_code(job_id)
        if code is None:
            return JobStatus(job_id=job_id, state=JobState.GONE, native_state="ended")
        state = JobState.FAILED if code else JobState.COMPLETED
        return JobStatus(job_id=job_id, state=state, native_state="ended", exit_code=f"{max(code, 0)}:{max(-code, 0)}")

    def _waiting_tasks(self, array: str) -> WaitingTasks | None:
        """Return the tasks that the array's script has not started yet; None if the script has ended."""
        script = _script_process(array)
        return WaitingTasks.of(array, script) if script else None

    def _exit_code(self, job_id: str) -> int | None:
        """Return a job's exit code, or minus the signal's number; None if it is not known."""
        status = self._wait_status.get(job_id)
        if status is not None:
            return os.waitstatus_to_exitcode(status)
        if self._run_dir:
            with contextlib.suppress(OSError, ValueError), open(RunLayout(self._run_dir).exit_code) as file:
                return int(file.read())
        return None

    def _collect(self) -> None:
        """Collect the exit status of every ended child, of all objects of this class, so that none stays a zombie."""
        for pid, (scheduler, job_id) in [*self._children.items()]:
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # a child of the process that this one was forked from
                self._children.pop(pid, None)
                continue
            if ended:
                scheduler._wait_status[job_id] = status
                self._children.pop(pid, None)


def make_scheduler(*, run_dir: str | None, timeout_s: float) -> LocalScheduler:  # noqa: ARG001
    """Make the scheduler of this machine, as `scheduler.protocol.SchedulerModule` asks."""
    return LocalScheduler(run_dir=run_dir)


def _rename(temporary: str, path: str) -> None:
    with file_system_errors(path):
        os.rename(temporary, path)


def _spawn(script: str, output: int) -> tuple[int, int]:
    """Start the launcher; return its process id and the descriptor through which it waits for a line."""
    read_end, write_end = os.pipe()
    try:
        pid = os.posix_spawnp(
            "bash",
            ["bash", "-p", "-c", _LAUNCHER, script, os.path.dirname(script)],
            scrub_environment(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, read_end, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    return pid, write_end


def _job_id(pid: int) -> str:
    process = find_process(pid)
    if process is None:
        raise SchedulerError(f"the job's process {pid} has vanished", tip="/proc must be mounted")
    return f"{LOCAL_PREFIX}{pid}-{process.start}"


def _script_process(job_id: str) -> Process | None:
    """Return the bash that runs the job's script; None if it is not alive."""
    match = _JOB_ID.fullmatch(job_id)
    if match is None:
        return None
    process = find_process(int(match[1]))
    return process if process and process.is_alive and process.start == int(match[2]) else None


def _session(job_id: str, processes: Sequence[Process]) -> list[Process]:
    """Return the processes in a job's session; for a task those of its array's session that have its id.

    The kernel gives no process an id that a session still has, so the processes in the session of a
    dead leader are the job's; a later leader with that id has another start time.
    """
    if split := split_task_id(job_id):
        return [process for process in _session(split[0], processes) if carries(process, job_id)]
    match = _JOB_ID.fullmatch(job_id)
    if match is None:
        return []
    pid, start = int(match[1]), int(match[2])
    leader = find_process(pid)
    if leader and leader.start != start:
        return []
    return [process for process in processes if process.session == pid and process.start >= start]


def _members(job_id: str) -> list[Process]:
    """Return the session's processes, their descendants, and those with the job id: workers have own sessions."""
    processes = living_processes()
    carriers = [process for process in processes if carries(process, job_id)]
    members = with_descendants([*_session(job_id, processes), *carriers], processes)
    return [process for process in members if process.pid != os.getpid()]  # a job may cancel itself


def _signal(process: Process, number: signal.Signals) -> None:
    try:
        send_signal(process, number)
    except PermissionError as error:
        raise SchedulerError(f"process {process.pid} belongs to another user", tip="ask its owner to cancel") from error
