"""A run at one moment, as `status`, `list` and `--follow` show it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hpc_elastic.observe.clock_steps import ClockStep
from hpc_elastic.observe.diagnosis import decide_state
from hpc_elastic.observe.facts import AttemptFacts, FactReader, Facts, root_cause_of
from hpc_elastic.observe.waiting import WAITING, Wait, describe_vain_starts, find_reason
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.states import RunState

if TYPE_CHECKING:
    from hpc_elastic.scheduler.protocol import JobQuery, JobStatus

FORMAT_VERSION = 1
RESULT_AWAITED = "its result is not there yet"  # in the note on a run whose job is over


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a run at one moment. The fields are the keys of `status --json`, in this order.

    `exit_code`, `reason`, `cause`, `ended` and `failures` are the result's, and None or empty before it is
    there. `job_state` and `job_reason` are the scheduler's own words, None where it was not asked.
    `nodes` and `workers` are of the latest attempt; `spares` are the nodes of the job that are here and not
    in it, `lost_nodes` those that are here no more, `awaited_nodes` those that have not come and are waited for
    before the first attempt of this start. `array` is the folder of the array that the run is a
    task of, `array_task` its number there, `parameters` what the array varies, as this run has it. `note`
    is something else that a person should know. `root_cause` is the result's record of why the last attempt
    failed. `notice` says that the workers of a run that goes on will be stopped soon: when that was given, and why.
    `between` is why the latest attempt has ended, if it has and the next one is not open yet; None if it runs.
    `set_aside` are the nodes that are here and get no workers, with the reasons: drained, blamed, or unhealthy.
    `left_out` are those without which the others have begun this start, with the reasons: no agent has come from it, or
    it cannot take part.
    `clock_steps` are when the clocks of the heads of this start were set meanwhile, by how much.
    `changed_scripts` are the entrypoints that are others in the latest allocation than in the one before.
    """

    run: str
    name: str
    run_dir: str
    site: str
    scheduler: str
    job_id: str | None
    state: RunState
    exit_code: int | None
    reason: str | None
    cause: str | None
    job_state: str | None
    job_reason: str | None
    job_nodes: str | None
    submitted: str | None
    started: str | None
    ended: str | None
    allocations: int
    attempts: int
    restarts: int
    max_restarts: int | None
    node_losses: int
    max_node_losses: int | None
    nodes: tuple[str, ...]
    spares: tuple[str, ...]
    lost_nodes: tuple[str, ...]
    awaited_nodes: tuple[str, ...]
    workers: int | None
    attempt_history: tuple[AttemptFacts, ...]
    failures: Mapping[str, Any]
    array: str | None
    array_task: int | None
    parameters: Mapping[str, str]
    note: str | None
    root_cause: Mapping[str, Any] | None = None
    notice: str | None = None
    between: str | None = None
    set_aside: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    changed_scripts: tuple[str, ...] = ()
    clock_steps: tuple[ClockStep, ...] = ()

    @property
    def changed_line(self) -> str:
        """Which scripts are others in the latest allocation than in the one before; empty if none are."""
        names = ", ".join(self.changed_scripts)
        return f"{names}: not the same in allocation {self.allocations} as in the one before" if names else ""

    @property
    def wait(self) -> Wait:
        """What Slurm says of a job that waits in the queue."""
        is_waiting = self.state.value in WAITING and self.scheduler == "slurm"
        return Wait(self.job_id or "", find_reason(self.job_state, self.job_reason) if is_waiting else "")

    @property
    def is_over(self) -> bool:
        """Whether there is a result, so that nothing of the run changes any more; `note` says if it is not written."""
        return self.state.is_final


def take_snapshot(layout: RunLayout, scheduler: JobQuery | None) -> Snapshot:
    """Read the run directory, and ask the scheduler only if there is no result yet.

    Args:
        layout: the run's.
        scheduler: the scheduler to ask; None if none is to be asked.

    Raises:
        RunDirectoryError: the directory cannot be read.
    """
    facts = FactReader(layout).read()
    job, note = ask_scheduler(facts, scheduler)
    return make_snapshot(facts, job, note)


def take_tolerant_snapshot(layout: RunLayout) -> Snapshot:
    """Read the run directory alone, without the records that cannot be read: the note of the snapshot names them."""
    facts = FactReader(layout, is_tolerant=True).read()
    snapshot = make_snapshot(facts, None)
    snapshot = replace(snapshot, note="; ".join(facts.unreadable) or snapshot.note)
    is_state_known = not any(layout.result in problem for problem in facts.unreadable)
    return snapshot if is_state_known else replace(snapshot, state=RunState.UNKNOWN)


def elsewhere(facts: Facts) -> str | None:
    """Return the machine of a local run if it is not this one, where its processes would look dead; else None."""
    host = facts.submission.get("host")
    is_here = facts.scheduler != "local" or host in (None, os.uname().nodename)
    return None if is_here else str(host)


def is_same_scheduler(facts: Facts) -> bool:
    """Return whether this shell surely asks the scheduler that got the job.

    Another cluster may share the file system, and does not know the job, or knows another one by its id.
    """
    from hpc_elastic.scheduler.slurm.identity import may_be_of_another_cluster

    return facts.scheduler != "slurm" or not may_be_of_another_cluster(facts.submission)


def is_anothers_job(facts: Facts) -> bool:
    """Return whether the scheduler that is asked here knows another job by the id of the run's."""
    from hpc_elastic.scheduler.slurm.identity import is_anothers_job

    if facts.scheduler != "slurm" or facts.job_id is None:
        return False
    return is_anothers_job(facts.job_id, facts.submission, str(facts.submission.get("array") or facts.run_dir))


def unknown_here(facts: Facts) -> str:
    """Return the note that the Slurm that this shell asks does not know the job."""
    chosen = " ".join(f"{name}={value}" for name, value in (facts.submission.get("selected_by") or {}).items())
    return (
        f"the state is from the run directory alone: the Slurm that is asked here does not know job {facts.job_id}; it "
        f"was submitted on {facts.submission.get('host')}{f' with {chosen}' if chosen else ''}, where it may be known"
    )


def may_be_hidden(facts: Facts) -> bool:
    """Return whether Slurm may know the job and not tell: where `PrivateData` has jobs, users see their own alone."""
    asks = os.geteuid()
    try:
        return facts.scheduler == "slurm" and asks not in (0, os.stat(facts.run_dir).st_uid)
    except OSError:
        return False


def hidden_here(facts: Facts) -> str:
    """Return the note that Slurm shows this user no job of somebody else's run."""
    owner = facts.submission.get("user") or "somebody else"
    return (
        f"the state is from the run directory alone: Slurm shows you no job {facts.job_id}, which is {owner}'s; "
        "it may hide it from you"
    )


def ask_scheduler(facts: Facts, scheduler: JobQuery | None) -> tuple[JobStatus | None, str | None]:
    """Return the job's status of an unfinished run, or a note why there is none."""
    if facts.result is not None or scheduler is None or facts.job_id is None:
        return None, None
    if (host := elsewhere(facts)) is not None:
        return (
            None,
            f"the state is from the run directory alone: the run is on {host}, whose processes are not seen here",
        )
    from hpc_elastic.errors import SchedulerError

    try:
        return scheduler.query([facts.job_id])[facts.job_id], None
    except SchedulerError as error:
        return None, f"the state is from the run directory alone: {error.message}"


def make_snapshot(facts: Facts, job: JobStatus | None, note: str | None = None) -> Snapshot:
    """Combine the facts and the job's status; pure."""
    result: Mapping[str, Any] = facts.result or {}
    latest = facts.attempts[-1] if facts.attempts else None
    plan, submission, state = facts.plan, facts.submission, decide_state(facts, job)
    snapshot = Snapshot(
        run=str(plan.get("run") or submission.get("run") or ""),
        name=str(plan.get("name") or submission.get("name") or ""),
        run_dir=facts.run_dir,
        site=str(plan.get("site") or submission.get("site") or ""),
        scheduler=facts.scheduler,
        job_id=facts.job_id,
        state=state,
        exit_code=result.get("exit_code"),
        reason=result.get("reason"),
        cause=result.get("cause"),
        job_state=job.native_state if job else None,
        job_reason=job.reason if job else None,
        job_nodes=job.nodes if job else None,
        submitted=submission.get("submitted"),
        started=result.get("started") or (facts.attempts[0].opened if facts.attempts else None),
        ended=result.get("ended"),
        allocations=facts.allocations,
        attempts=latest.number if latest else int(result.get("attempts") or 0),
        restarts=int(result.get("restarts") or (latest.restarts if latest else 0)),
        max_restarts=_limit(plan, "max_restarts"),
        node_losses=_node_losses(facts),
        max_node_losses=_limit(plan, "max_node_losses"),
        nodes=latest.nodes if latest else tuple(result.get("nodes") or ()),
        spares=facts.beside.spares,
        lost_nodes=facts.beside.lost,
        awaited_nodes=() if state.is_final else facts.beside.awaited,
        workers=latest.workers if latest else None,
        attempt_history=facts.attempts,
        failures=_failures_here(result.get("failures") or {}, facts),
        array=submission.get("array"),
        array_task=submission.get("array_task"),
        parameters=submission.get("parameters") or {},
        note=_join_notes(facts, job, state, note),
        root_cause=root_cause_of(result),
        between=None if state.is_final else facts.between,
        set_aside=facts.beside.set_aside,
        left_out=facts.beside.left_out,
        changed_scripts=_texts(facts.allocation.get("changed_scripts")),
        clock_steps=facts.clock_steps,
        notice=facts.notice if state is RunState.RUNNING and not facts.has_ended else None,
    )
    return replace(snapshot, note="; ".join(filter(None, (snapshot.wait.endless, snapshot.note))) or None)


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return the object of `status --json`; keys are only ever added."""
    return {"format_version": FORMAT_VERSION, **asdict(snapshot), "state": snapshot.state.value}


def _join_notes(facts: Facts, job: JobStatus | None, state: RunState, note: str | None) -> str | None:
    notes = (
        note or _ended_note(facts, job),
        _stop_note(facts, state),
        facts.step_wait if state is RunState.RUNNING else None,
        _vain_note(facts, job) if state.value in WAITING else None,
        _full_note(facts),
        *facts.unreadable[:1],
    )
    return "; ".join(filter(None, notes)) or None


def _failures_here(failures: Mapping[str, Any], facts: Facts) -> Mapping[str, Any]:
    """Return the failures with the paths of their error files as they are now: the run directory may have moved."""
    layout, before = RunLayout(facts.run_dir), str(facts.plan.get("run_dir") or "")
    return {
        rank: {**failure, "error_file": layout.here(path, before)}
        if isinstance(failure, dict) and isinstance(path := failure.get("error_file"), str)
        else failure
        for rank, failure in failures.items()
    }


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _limit(plan: Mapping[str, Any], name: str) -> int | None:
    value = (plan.get("restart") or {}).get(name)
    return value if isinstance(value, int) else None


def _node_losses(facts: Facts) -> int:
    """Return the node losses that the latest claim counts, plus the nodes of its world that were lost since."""
    if not facts.attempts:
        return 0
    latest = facts.attempts[-1]
    return latest.node_losses + len(set(latest.nodes).intersection(facts.beside.lost))


def _stop_note(facts: Facts, state: RunState) -> str | None:
    if not facts.is_stop_requested or state not in (RunState.PENDING, RunState.REQUEUED):
        return None
    return "a stop is asked for: the run ends as soon as its job starts"


def _vain_note(facts: Facts, job: JobStatus | None) -> str | None:
    """Return a note about starts of the waiting job since the latest one that an agent has claimed."""
    if job is None:
        return None
    before = facts.allocation.get("restart_count") if facts.allocation.get("job_id") == job.job_id else None
    times = job.restarts - before - 1 if isinstance(before, int) else job.restarts
    return describe_vain_starts(job.job_id, times, has_begun=before is not None) or None


def _full_note(facts: Facts) -> str | None:
    if facts.result is not None or not facts.disk_lack:
        return None
    return f"{facts.disk_lack}, or what the run writes is lost"


def _ended_note(facts: Facts, job: JobStatus | None) -> str | None:
    if facts.result is None and job is not None and job.state.is_terminal:
        how = f"has ended ({job.native_state})" if job.native_state else "is not known to the scheduler any more"
        return f"the job {how}; {RESULT_AWAITED}"
    if not facts.submission:
        return "there is no submission.json: the submission is under way, or was interrupted"
    return None
