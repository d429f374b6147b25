"""The process beside the agent that kills the workers when the agent is dead or frozen.

    PYTHON <package>/launch.py hpc_elastic.agent.guard.process DESCRIPTOR RUN_DIR NODE AGENT

The agent holds the other end of standard input, and shares the memory of DESCRIPTOR, which holds the deadline until
which the workers may run (see `hpc_elastic.deadline`; `inf` while there are none). AGENT is what its workers carry of
it. A line on standard input says
that the deadline was moved nearer. When it has passed, or standard input ends without the line `bye`, the guard kills
every worker of the run on this node, again and again. As long as the deadline is not moved, it goes on looking,
because a process that was about to become a worker may do so late. The guard starts before any worker and ignores the
signals that end an agent, which Slurm may send to every process of a step. TERM, USR1 and USR2 it blocks instead: so
they stay pending, and tell the agent that a signal of its own was sent to the processes beside it as well. Like a
worker, the guard is a child of the agent in a session of its own. It never takes a TERM, which comes once; USR1 and
USR2 may come again, so it forgets the one whose line (`forget`) is on standard input.

An agent may be killed while its job is suspended. Slurm lets only those processes go on that it finds below the step's
tasks, so the kernel is asked to do that for the guard when the agent ends.

Nothing that could block or be postponed comes before the kill. The line for the log is written by a thread afterwards,
because its reader may be the frozen agent. The processes below the agent are found without reading any other process
of the node. Of the others, the older ones are known by then to be none of the run's. The memory that all this needs is
locked where the limits allow it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from hpc_elastic.agent.system.alarm import Alarm
from hpc_elastic.agent.system.processes import Marks, WorkerSearch, find_below, find_workers, signal_all
from hpc_elastic.clock import now
from hpc_elastic.deadline import Deadline
from hpc_elastic.death_signal import go_on_without_parent
from hpc_elastic.processes import Process, find_process

BYE = b"bye\n"
NEARER = b"\n"
IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCONT)
FOR_WORKERS = (signal.SIGUSR1, signal.SIGUSR2)
KILL_BOUND_S = 30.0
KILL_AGAIN_S = 0.02
LOOK_AGAIN_S = 1.0
LOOKS_BEFORE_S = 2.0  # a node may have ten thousand processes, and to read all of them takes a second
_LOCKED = 1 | 4  # MCL_CURRENT | MCL_ONFAULT of mlockall(2): what is in memory stays there


def main(arguments: Sequence[str]) -> int:
    """Guard the workers until the agent says bye or has ended; kill them in the second case."""
    descriptor, run_dir, node, agent = arguments
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, *FOR_WORKERS})
    for number in (signal.SIGTERM, *FOR_WORKERS):
        signal.signal(number, signal.SIG_DFL)  # the kernel keeps no signal that an inherited SIG_IGN throws away
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        go_on_without_parent()
    os.chdir("/")
    sys.setswitchinterval(0.001)  # so that a search in a thread holds up no kill
    marks = Marks(run_dir=run_dir, node=node, agent=agent)
    if not Guard(marks, Deadline(int(descriptor))).watch():
        kill_all(marks)
    return 0


def forget(number: signal.Signals) -> bytes:
    """Return the line that has the guard forget that it got this signal, one of `FOR_WORKERS`."""
    return b"forget %d\n" % number


def kill_all(marks: Marks) -> bool:
    """Kill every worker of the run on this node, which is every process with these marks.

    Returns:
        Whether no worker is left within `KILL_BOUND_S`.
    """
    deadline = time.monotonic() + KILL_BOUND_S
    signal_all(find_below(os.getpid(), marks).values(), signal.SIGKILL)
    while found := find_workers(marks):
        if time.monotonic() > deadline:
            return False
        signal_all(found.values(), signal.SIGKILL)
        time.sleep(KILL_AGAIN_S)  # a killed process takes a moment to be gone
    return True


class Guard:
    """Kills the workers whenever the deadline has passed.

    Args:
        marks: what the workers carry in their environments.
        deadline: the time until which they may run.
    """

    def __init__(self, marks: Marks, deadline: Deadline) -> None:
        self._marks = marks
        self._deadline = deadline
        self._search = WorkerSearch(marks)
        self._seen: dict[int, Process] = {}
        self._agent = os.getppid()
        self._looks_again_at = float("inf")
        self._searches_at = 0.0
        self._searching = threading.Lock()  # held by who searches the whole node
        self._has_found = False  # that search, since the deadline
        self._has_said = False
        self._pause_s = KILL_AGAIN_S
        self._word = b""
        self._alarm = Alarm()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mlockall(_LOCKED)
        if not _in_a_thread(self._look):  # so that one that takes the place of another is armed at once
            self._look()

    def watch(self) -> bool:
        """Guard until the agent ends, and return whether it said bye."""
        while (ending := self._listen(self._act())) is None:
            pass
        return ending

    def _act(self) -> float:
        """Do what is due now, and return after how many seconds something is due again."""
        left = self._deadline.value - now()
        if left <= 0:
            return self._kill()
        self._has_said, self._has_found, self._pause_s, self._searches_at = False, False, KILL_AGAIN_S, 0.0
        if left > LOOKS_BEFORE_S:
            return left - LOOKS_BEFORE_S
        if now() >= self._looks_again_at:
            self._looks_again_at = float("inf")
            _in_a_thread(self._look)
        return max(0.0, self._deadline.value - now())

    def _look(self) -> None:
        """Search for workers before the deadline; runs in a thread because it may block.

        A read of /proc/PID/environ blocks while that process is in the middle of an exec.
        """
        try:
            search = self._search.copy()
            self._seen = search.find()
            self._search = search
        finally:  # one that fails is not the last one
            self._looks_again_at = now() + LOOKS_BEFORE_S

    def _kill(self) -> float:
        """Do one round of kills; return the seconds until the next one is due.

        First come the workers that the last search ahead has found, then those below the agent, then all others. To
        search the whole node takes long: it is done in a thread, as a worker that was just being started is seen below
        the agent a moment later, and less and less often while no worker is found.
        """
        known, self._seen = [process for process in self._seen.values() if _is_alive(process)], {}
        signal_all(known, signal.SIGKILL)
        below = find_below(self._agent, self._marks) if os.getppid() == self._agent else {}
        if not self._deadline.has_passed:
            return 0.0  # the deadline was moved, so the next attempt may start: these may be its workers
        signal_all(below.values(), signal.SIGKILL)
        is_due = now() >= self._searches_at and self._searching.acquire(blocking=False)
        if is_due and not _in_a_thread(self._kill_anywhere):
            self._kill_anywhere()
        if (known or below or self._has_found) and not self._has_said:
            self._has_said = True
            _in_a_thread(self._say)
        return KILL_AGAIN_S

    def _kill_anywhere(self) -> None:
        """Kill the workers found on the whole node; the next search may begin then."""
        try:
            # The search skips a process that it has recorded as unrelated, even if that became a worker later.
            found = self._search.find() or find_workers(self._marks)
            if not self._deadline.has_passed:
                return  # as in `_kill`: the deadline was moved; the next round sees that, too
            signal_all(found.values(), signal.SIGKILL)
            self._has_found = self._has_found or bool(found)
            self._pause_s = KILL_AGAIN_S if found else min(2 * self._pause_s, LOOK_AGAIN_S)
            self._searches_at = now() + self._pause_s
        finally:
            self._searching.release()

    def _say(self) -> None:
        text = f"the workers of {self._marks.node} may not run any longer, and the agent has not ended them: killed"
        with contextlib.suppress(OSError):
            os.write(2, f"hpc-elastic guard: {text}\n".encode())

    def _listen(self, within_s: float) -> bool | None:
        """Wait for input from the agent; return whether it said bye at its end, None if it has not ended."""
        self._alarm.set(now() + within_s)
        descriptors = [0, *self._alarm.descriptors]
        readable, _, _ = select.select(descriptors, [], [], None if within_s == float("inf") else within_s)
        if 0 not in readable:
            return None
        data = os.read(0, 4096)
        for number in FOR_WORKERS:
            if forget(number) in data:
                signal.sigtimedwait([number], 0)
        self._word = (self._word + data)[-len(BYE) :]
        if self._word == BYE:
            return True
        return None if data else False


def _in_a_thread(function: Callable[[], None]) -> bool:
    """Run a function in a thread of its own; do nothing, and return False, if no thread can be started."""
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=function, daemon=True).start()
        return True
    return False


def _is_alive(process: Process) -> bool:
    found = find_process(process.pid)
    return found is not None and found.is_alive and found.start == process.start
