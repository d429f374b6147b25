"""Makes all checks, here and on nodes, in the order in which a person needs to know what they found."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from hpc_elastic.api.prepare import PreparedRun
from hpc_elastic.doctor.judge_nodes import judge_nodes
from hpc_elastic.doctor.login import SlurmSeen, examine_run_root, examine_slurm, judge_run_root
from hpc_elastic.doctor.probe_job import ProbeJob, ProbeOutcome, judge_job, request_of
from hpc_elastic.doctor.probes.bounded import LateError, answer_within
from hpc_elastic.doctor.results import CheckResult, Severity, worst
from hpc_elastic.doctor.told import NodeAnswers
from hpc_elastic.errors import RunDirectoryError, SchedulerError
from hpc_elastic.scheduler.protocol import Scheduler

_SHOWN_NODES = 4


@dataclass(slots=True, kw_only=True)
class Examined:
    """What the checks found: the lines by group, and what a draft of a site file needs beside them."""

    groups: dict[str, list[CheckResult]] = field(default_factory=dict)
    slurm: SlurmSeen = field(default_factory=SlurmSeen)
    outcome: ProbeOutcome | None = None

    @property
    def results(self) -> list[CheckResult]:
        """All lines."""
        return [each for results in self.groups.values() for each in results]

    @property
    def told(self) -> NodeAnswers | None:
        """What the nodes answered; None if none did."""
        outcome = self.outcome
        if outcome is None or not outcome.answers:
            return None
        return NodeAnswers(nodes=outcome.nodes, answers=outcome.answers, sent=outcome.sent, read=outcome.read)


def examine(
    prepared: PreparedRun, scheduler: Scheduler | None, *, pending_s: float, say: Callable[[str], None]
) -> Examined:
    """Make the checks.

    Args:
        prepared: the job that makes those of the nodes.
        scheduler: starts it; None: only this machine is looked at.
        pending_s: for how long it may wait to start.
        say: is called with each line about its progress.
    """
    plan, examined = prepared.plan, Examined()
    here: list[CheckResult] = []
    if plan.scheduler == "slurm":
        examined.slurm = examine_slurm(plan)
        here += examined.slurm.results
    root = os.path.dirname(plan.run_dir)
    is_new = _is_missing(root)
    in_root = list(judge_run_root(examine_run_root(root), is_shared=plan.scheduler == "slurm"))
    examined.groups[f"Here, for site {plan.site}"] = here + in_root
    try:
        if scheduler is not None and (examined.slurm.is_silent or worst(in_root) is Severity.FAIL):
            why = "Slurm does not answer" if examined.slurm.is_silent else "its folder cannot be made"
            results = [CheckResult(check="job", verdict=Severity.SKIP, found=f"no job was started: {why}")]
            examined.groups["On nodes"] = results
        elif scheduler is not None:
            job = ProbeJob(prepared, scheduler, say=say, pending_s=pending_s)
            title, results = _examine_nodes(job, prepared, examined, say)
            examined.groups[title] = results
    finally:
        if is_new:
            _remove_empty(root)
    return examined


def _examine_nodes(
    job: ProbeJob, prepared: PreparedRun, examined: Examined, say: Callable[[str], None]
) -> tuple[str, list[CheckResult]]:
    try:
        outcome = examined.outcome = job.run()
    except (SchedulerError, RunDirectoryError) as error:
        job.remove_folder()
        refused = CheckResult(
            check="job",
            verdict=Severity.FAIL,
            found=error.message,
            expected="a job on nodes",
            action=error.tip or "",
            key="defaults.sbatch" if isinstance(error, SchedulerError) else "run_root",
        )
        return "On nodes", [refused]
    except BaseException:  # Ctrl-C: the job is ended
        job.remove_folder()
        raise
    results = list(judge_job(outcome))
    if worst(results) is Severity.FAIL:
        say(f"what the job wrote is in {job.folder}")
    else:
        job.remove_folder()
    if (told := examined.told) is not None:
        results += judge_nodes(told, request_of(prepared.plan), job.active_of(told.answers))
    shown = ", ".join(outcome.nodes[:_SHOWN_NODES]) + (" ..." if len(outcome.nodes) > _SHOWN_NODES else "")
    return f"On {shown or 'nodes'}", results


def _is_missing(path: str) -> bool:
    try:
        return answer_within(lambda: not os.path.lexists(path), 5.0)
    except LateError:
        return False


def _remove_empty(path: str) -> None:
    with contextlib.suppress(OSError, LateError):
        answer_within(lambda: os.rmdir(path), 5.0)
