"""Warns where Slurm's own times between TERM and KILL are shorter than the grace that a job gives its workers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from hpc_elastic.api.prepare import PreparedRun
from hpc_elastic.errors import SchedulerError
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.scheduler.environment import options_of_shell
from hpc_elastic.scheduler.slurm.limits import StopLimits, find_stop_limits

SUBMIT_WAITS_S = 2.0  # for a warning; sbatch waits for a controller by itself


def check_submitted_limits(prepared: PreparedRun, *, warn: Callable[[str], None]) -> None:
    """Warn of times of Slurm's that cut a grace short which the job file or the site file has chosen.

    The grace of the defaults is longer than most clusters' times, and nobody has asked for it: `check` tells of it.
    """
    chosen = (prepared.job.signals, prepared.site.defaults.signals)
    if any(signals is not None and signals.grace is not None for signals in chosen):
        check_stop_limits(prepared.plan, warn=warn, timeout_s=SUBMIT_WAITS_S)


def check_stop_limits(plan: LaunchPlan, *, warn: Callable[[str], None], timeout_s: float = 4.0) -> StopLimits | None:
    """Ask Slurm for its times, and warn of those that cut the job's grace short; do nothing on this machine.

    Returns:
        The times; None on this machine, and if Slurm does not answer within so many seconds.
    """
    if plan.scheduler != "slurm":
        return None
    try:
        limits = find_stop_limits(*partition_and_qos(plan), timeout_s=timeout_s)
    except SchedulerError:  # a job file is also checked where no Slurm is
        return None
    for line in short_limits(plan, limits):
        warn(line)
    return limits


def partition_and_qos(plan: LaunchPlan) -> tuple[str | None, str | None]:
    """Return the partition and the QOS that a job, or else the submitting shell, names; None for Slurm's default."""
    shell = options_of_shell(os.environ)
    names = (("partition", "p"), ("qos", "q"))
    partition, qos = (plan.sbatch.get(long) or plan.sbatch.get(short) or shell.get(long) for long, short in names)
    return partition, qos


def describe_over_time(limits: StopLimits | None) -> str:
    """Return for people how long Slurm lets a job run beyond its limit, and what that means; empty if it does not."""
    if limits is None or not limits.over_time_s:
        return ""
    longer = "any time" if math.isinf(limits.over_time_s) else f"{limits.over_time_s / 60:g} min"
    return f"Slurm lets a job run {longer} beyond its limit (OverTimeLimit); the workers are stopped before the limit"


def short_limits(plan: LaunchPlan, limits: StopLimits) -> list[str]:
    """Return a line about each of Slurm's times that is shorter than the job's grace."""
    grace_s, lines = plan.signals.grace_s, []
    kill_wait_s = limits.kill_wait_s
    if kill_wait_s is None:
        return []
    if kill_wait_s < grace_s:
        lines.append(
            f"signals.grace is {grace_s:g} s, but Slurm kills {kill_wait_s} s after the TERM of scancel (KillWait); "
            "`hpc-elastic cancel` and the time limit keep to signals.grace"
        )
    if limits.preemption_s is not None and limits.preemption_s + kill_wait_s < grace_s:
        where = f"QOS {limits.qos}" if limits.qos else f"partition {limits.partition}"
        lines.append(
            f"signals.grace is {grace_s:g} s, but a job that is preempted in {where} is killed "
            f"after {limits.preemption_s + kill_wait_s} s (its GraceTime of {limits.preemption_s} s, and KillWait)"
        )
    return lines
