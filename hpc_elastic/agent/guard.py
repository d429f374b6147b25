"""The process beside the agent that kills the workers when the agent is dead or frozen.

    PYTHON <package>/launch.py hpc_elastic.agent.guard RUN_DIR NODE

The agent holds the other end of standard input. A line there is the moment, by the monotonic clock
that all processes of a machine share, until which the workers may run without another line; `inf`
while there are none. When that moment passes, or standard input ends without the line `bye`, the
guard kills every worker of the run on this node, again and again until none is left. It starts
before any worker and ignores the signals that end an agent, which Slurm sends to every process of
a step.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Collection, Sequence

from hpc_elastic.agent.processes import Marks, find_workers, signal_all

BYE = "bye"
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
KILL_BOUND_S = 30.0
KILL_AGAIN_S = 0.02


def main(arguments: Sequence[str]) -> int:
    """Guards until the agent says bye or is gone."""
    run_dir, node = arguments
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    marks = Marks(run_dir=run_dir, node=node)
    if not _watch(marks):
        kill_all(marks)
    return 0


def kill_all(marks: Marks, *, spared: Collection[int] = ()) -> bool:
    """Kills every worker of the run on this node.

    Args:
        marks: what they carry.
        spared: processes that carry it too and are none.

    Returns:
        Whether none is left within the bound.
    """
    deadline = time.monotonic() + KILL_BOUND_S
    while found := find_workers(marks, spared=spared):
        if time.monotonic() > deadline:
            return False
        signal_all(found.values(), signal.SIGKILL)
        time.sleep(KILL_AGAIN_S)  # a killed process takes a moment to be gone
    return True


def _watch(marks: Marks) -> bool:
    """Follows the agent's lines; whether it said bye."""
    deadline = gives_up_at = float("inf")
    rest = ""
    while True:
        if not _has_line(deadline - time.monotonic()):
            found = find_workers(marks)
            if _has_line(0):
                continue  # the next attempt may start: its deadline came first, and its workers may be among these
            now = time.monotonic()
            if found and gives_up_at == float("inf"):
                gives_up_at = now + KILL_BOUND_S
                text = f"the workers of {marks.node} may not run any longer, and the agent has not ended them yet"
                print(f"hpc-elastic guard: {text}; killing them", file=sys.stderr)
            signal_all(found.values(), signal.SIGKILL)
            deadline = now + KILL_AGAIN_S if found and now < gives_up_at else float("inf")
            continue
        data = os.read(0, 4096)
        if not data:
            return False
        *lines, rest = (rest + data.decode()).split("\n")
        if BYE in lines:
            return True
        if lines:
            deadline, gives_up_at = float(lines[-1]), float("inf")


def _has_line(within_s: float) -> bool:
    """Whether the agent says something, or is gone, within so many seconds."""
    readable, _, _ = select.select([0], [], [], None if within_s == float("inf") else max(0.0, within_s))
    return bool(readable)
