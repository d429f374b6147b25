"""Keeps the comment of a job up to date, which people read where they look at the queue (`squeue -O Comment`, `sacct`).

Theory of operation. Only the head's node tells it, and seldom: each update is work for the controller. The scheduler
may be silent for seconds, so it is told in a thread that nobody waits for; what it refuses is logged once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.errors import HpcElasticError, RunDirectoryError
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.printable import printable_line
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.registry import from_node
from hpc_elastic.units import format_duration
from hpc_elastic.useful_time.reading import read_useful_time

EVERY_S = 300.0
_LOOKS_EVERY_S = 5.0  # whether this node is the head's, and whether there is an attempt
_LONGEST = 200  # characters


async def keep_comment(
    journal: Journal,
    plan: LaunchPlan,
    job_id: str,
    say: Callable[[str], None],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Tell the scheduler how the run goes: as soon as there is an attempt, and then every five minutes; never returns.

    Args:
        journal: knows whether this node is the head's.
        plan: the launch plan.
        job_id: the job of this allocation.
        say: takes a line for the agent's log.
        sleep: waits so many seconds.
    """
    loop, refused = asyncio.get_running_loop(), ""
    while True:
        await sleep(_LOOKS_EVERY_S)
        if not journal.is_head:
            continue
        problem = await loop.run_in_executor(None, _tell, RunLayout(plan.run_dir), job_id)
        if problem is None:
            continue
        if problem and problem != refused:
            say(f"metrics.comment: {problem}")
        refused = problem
        await sleep(EVERY_S)


def describe_run(layout: RunLayout, *, now: float) -> str | None:
    """Return a line that says how a run goes; None if it has no attempt yet. Blocks, and raises nothing.

    Args:
        layout: the run's.
        now: the present in Unix seconds.
    """
    with contextlib.suppress(RunDirectoryError, ValueError, RecursionError):
        numbers = store.list_numbers(layout.attempts)
        claim = store.read_json(layout.claim(numbers[-1])) if numbers else None
        if not isinstance(claim, dict):
            return None
        told = [f"hpc-elastic: attempt {numbers[-1]}"]
        spent = read_useful_time(layout, now=now)
        whole = round(sum(spent.seconds.values()))
        if spent.share is not None and whole:
            told.append(f"useful {100 * spent.share:.0f} % of {format_duration(timedelta(seconds=whole))}")
        cause = claim.get("root_cause")
        if isinstance(cause, dict) and isinstance(cause.get("line"), str):
            told.append(f"after: {cause['line']}")
        return printable_line(", ".join(told))[:_LONGEST]
    return None


def _tell(layout: RunLayout, job_id: str) -> str | None:
    """Return what the scheduler says against it, empty if nothing; None if there is nothing to tell yet."""
    text = describe_run(layout, now=time.time())
    if text is None:
        return None
    try:
        from_node(job_id).set_comment(job_id, text)
    except HpcElasticError as error:
        return error.message
    return ""
