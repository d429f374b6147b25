"""Says what Slurm's reason for a job that waits in the queue means, and what to do about it; pure.

The reasons are those of job_reason_codes.html and of job_state_reason_string() in Slurm 22.05 to 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from shlex import quote

from hpc_elastic.observe.narrate import WAITING
from hpc_elastic.observe.snapshot import Snapshot

_HELD = "JobHeldUser|requeued in held state|[Ll]aunch failed requeued held|JobHoldMaxRequeue"
# What is found first counts: a pattern of the reason, what it means, what to do, and a command for it.
_REASONS = (
    (_HELD, "the job is held", "release the job: as long as it is held it does not start", "scontrol release {job}"),
    (
        "JobHeldAdmin",
        "an administrator holds the job",
        "ask the administrators why: only they can release the job",
        "scontrol show job {job}",
    ),
    (
        "DependencyNeverSatisfied",
        "what it depends on will never be",
        "cancel the run, and submit it without this dependency: this job never starts",
        "scontrol show job {job}",
    ),
    ("Dependency", "it depends on another job", "", "scontrol show job {job}"),
    (
        "BeginTime",
        "its earliest start is later",
        "wait: it is the `begin` of the job file, or a pause of Slurm of two minutes or less after a requeue",
        "scontrol show job {job}",
    ),
    (
        "PartitionDown|PartitionInactive",
        "its partition starts no jobs now",
        "ask the administrators until when, or move the job to another partition by `scontrol update`",
        "sinfo --summarize",
    ),
    (
        "PartitionNodeLimit|PartitionTimeLimit",
        "it asks for more than its partition allows now",
        "ask for less `time` or fewer `nodes`, or name another partition",
        "scontrol show partition",
    ),
    (
        "ReqNodeNotAvail|UnavailableNodes|DOWN, DRAINED|NodeDown",
        "nodes that it needs are down, drained or reserved",
        "see which nodes are out, and why; before a reservation a job with less `time` may still start on its nodes",
        "sinfo --list-reasons",
    ),
    ("Reservation", "its reservation has not begun, or is full or gone", "", "scontrol show reservation"),
    ("[Ll]icenses?", "its licenses are in use", "", "scontrol show licenses"),
    (
        "InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed",
        "its account or QOS is not valid here",
        "cancel the run, and submit it with an account and a QOS that you may use",
        "sacctmgr show assoc where user=$USER",
    ),
    ("BadConstraints", "no node has what it asks for", "lower what the job file asks for: no node has all of it", ""),
    (
        "QOS|Assoc",
        "its account or QOS is at a limit",
        "wait until other jobs of the account or QOS have ended; one that asks for more than the limit never starts",
        "squeue --me",
    ),
    ("Resources|Priority", "", "", "squeue --start --job {job}"),
)


_FOR_EVER = re.compile(f"{_HELD}|JobHeldAdmin|DependencyNeverSatisfied|InvalidAccount|InvalidQOS|BadConstraints")


def endless_wait(snapshot: Snapshot) -> str:
    """Return a line about a job that does not start unless a person does something; empty if it may start."""
    if not _FOR_EVER.search(_reason(snapshot)):
        return ""
    parts = (f"job {snapshot.job_id} does not start by itself: {why_waiting(snapshot)}", *commands_of_wait(snapshot))
    return "; ".join(parts)


def why_waiting(snapshot: Snapshot) -> str:
    """Return why the run's job waits in the queue, with Slurm's own word; empty if it does not, or does not say."""
    reason = _reason(snapshot)
    if not reason:
        return ""
    phrase = next((phrase for _, phrase, _, _ in _first(reason)), "")
    return f"{phrase} ({reason})" if phrase else f"it waits for {reason}"


def advice_of_wait(snapshot: Snapshot) -> Iterable[str]:
    """Yield what to do about the wait."""
    yield from (advice for _, _, advice, _ in _first(_reason(snapshot)) if advice)


def commands_of_wait(snapshot: Snapshot) -> Iterable[str]:
    """Yield the command that says more about the wait, or ends it."""
    job = quote(snapshot.job_id or "")
    yield from (command.format(job=job) for _, _, _, command in _first(_reason(snapshot)) if command)


def _reason(snapshot: Snapshot) -> str:
    is_waiting = snapshot.state.value in WAITING and snapshot.scheduler == "slurm"
    return (snapshot.job_reason or "") if is_waiting else ""


def _first(reason: str) -> list[tuple[str, str, str, str]]:
    return [row for row in _REASONS if re.search(row[0], reason)][:1] if reason else []
