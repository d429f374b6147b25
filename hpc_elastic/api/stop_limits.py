"""Warns where Slurm's own times between TERM and KILL are shorter than the grace that a job gives its workers."""

from __future__ import annotations

from collections.abc import Callable

from hpc_elastic.errors import SchedulerError
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.scheduler.slurm.limits import StopLimits, find_stop_limits


def check_stop_limits(plan: LaunchPlan, *, warn: Callable[[str], None]) -> None:
    """Ask Slurm for its times, and warn of those that cut the job's grace short; do nothing on this machine."""
    if plan.scheduler != "slurm":
        return
    named = plan.sbatch.get("partition") or plan.sbatch.get("p")
    try:
        limits = find_stop_limits(named.split(",")[0] if named else None)
    except SchedulerError:  # a job file is also checked where no Slurm is
        return
    for line in short_limits(plan, limits):
        warn(line)


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
        lines.append(
            f"signals.grace is {grace_s:g} s, but a job that is preempted in partition {limits.partition} is killed "
            f"after {limits.preemption_s + kill_wait_s} s (its GraceTime of {limits.preemption_s} s, and KillWait)"
        )
    return lines
