"""Says what Slurm's reason for a job that waits in the queue means, and what to do about it; pure.

The reasons are those of job_reason_codes.html and of job_state_reason_string() in Slurm 22.05 to 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from shlex import quote

WAITING = ("PENDING", "REQUEUED")  # the states in which the job is in the queue
_LAUNCH_FAILED = "[Ll]aunch failed requeued held"
_HELD = "JobHeldUser|requeued in held state|JobHoldMaxRequeue"
_RESERVATION_OVER = "Reservation .* was deleted|ReservationDeleted"
_PARTITION_LIMIT = "PartitionNodeLimit|PartitionTimeLimit"
_PER_JOB = r"Max\w*Per(?:Job|Node)|QOSMin|QOSTimeLimit|AssociationTimeLimit"  # what other jobs do is no matter
_NOT_VALID = "InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed"
# States of a job in the queue that say more than its reason: for minutes its nodes boot, or a prolog or epilog runs.
_TELLING_STATES = ("CONFIGURING", "POWER_UP_NODE", "COMPLETING")
# What is found first counts: a pattern of the reason, what it means, what to do, and a command for it.
_REASONS = (
    (
        _LAUNCH_FAILED,
        "Slurm could not start it on its nodes, and holds it",
        "see which nodes are out, mostly for a prolog that failed (`sinfo --list-reasons`), and release the job",
        "scontrol release {job}",
    ),
    (_HELD, "the job is held", "release the job: as long as it is held it does not start", "scontrol release {job}"),
    (
        "JobHeldAdmin",
        "an administrator holds the job, or Slurm does: it was requeued while suspended",
        "ask the administrators to release the job: only they can",
        "scontrol release {job}",
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
        _PARTITION_LIMIT,
        "it asks for more than its partition allows now",
        "ask for less time, or another partition, by `scontrol update`; else it waits until its partition allows more",
        "scontrol show partition",
    ),
    (
        "ReqNodeNotAvail|UnavailableNodes|DOWN, DRAINED|NodeDown",
        "nodes that it needs are down, drained or reserved",
        "see which nodes are out, and why; before a reservation a job with less `time` may still start on its nodes",
        "sinfo --list-reasons",
    ),
    (
        _RESERVATION_OVER,
        "its reservation is over, and Slurm holds it",
        "release the job, and it starts without a reservation; or name another one first by `scontrol update`",
        "scontrol release {job}",
    ),
    ("Reservation", "its reservation has not begun, or is full or gone", "", "scontrol show reservation"),
    (
        _NOT_VALID,
        "its account or QOS is not valid here",
        "cancel the run, and submit it with an account and a QOS that you may use",
        "sacctmgr show assoc where user=$USER",
    ),
    ("BadConstraints", "no node has what it asks for", "lower what the job file asks for: no node has all of it", ""),
    (
        _PER_JOB,
        "it asks for more, or less, than one job of its account or QOS may have",
        "cancel the run, and submit it with what the limit allows, or another account or QOS: as it is it never starts",
        "sacctmgr show assoc where user=$USER; sacctmgr show qos",
    ),
    (
        r"Grp(?!\w*Run)\w*Minutes|GrpWallLimit|UsageThreshold",
        "its account or QOS has used up its share of time",
        "ask for more time, or name another account or QOS; it starts later only where Slurm forgets what was used",
        "sshare",
    ),
    (
        "QOS|Assoc",
        "its account or QOS is at a limit",
        "wait until other jobs of the account or QOS have ended; one that asks for more than the limit never starts",
        "squeue --me",
    ),
    ("[Ll]icenses?", "its licenses are in use", "", "scontrol show licenses"),
    ("Resources|Priority", "", "", "squeue --start --job {job}"),
    (
        "CONFIGURING|POWER_UP_NODE",
        "its nodes are made ready: they boot, or a prolog of the cluster runs",
        "",
        "scontrol show job {job}",
    ),
    (
        "COMPLETING",
        "Slurm still ends the start before: an epilog of the cluster runs, or a node does not answer",
        "",
        "scontrol show job {job}",
    ),
)


_FOR_EVER = re.compile(
    f"{_HELD}|{_RESERVATION_OVER}|{_LAUNCH_FAILED}|{_PER_JOB}|{_PARTITION_LIMIT}|{_NOT_VALID}|JobHeldAdmin|DependencyNeverSatisfied|BadConstraints"
)


def find_reason(native_state: str | None, reason: str | None) -> str:
    """Return Slurm's word for why a job waits: its reason, or its state where that says more; empty if neither does.

    A job that Slurm still ends has the reason of that end, unless it will be held.
    """
    is_told = _FOR_EVER.search(reason or "") or (reason and native_state != "COMPLETING")
    return reason if reason and is_told else native_state if native_state in _TELLING_STATES else ""


def describe_vain_starts(job_id: str, times: int, *, has_begun: bool) -> str:
    """Return a line about a job that Slurm starts again and again without an agent of it; empty below two times.

    Args:
        job_id: the job's number.
        times: how often since its last start that had an agent, or at all.
        has_begun: whether there was such a start.
    """
    if times < 2:
        return ""
    since = " since its last one" if has_begun else ""
    return (
        f"Slurm has begun to start job {job_id} {times} times{since}, and no agent has come of it: its nodes do not "
        "boot, or a prolog of the cluster fails; see `sinfo --list-reasons`, and ask the administrators"
    )


@dataclass(frozen=True, slots=True)
class Wait:
    """A job that waits in the queue. `reason`: Slurm's word for why; empty if it does not wait, or nobody says why."""

    job_id: str = ""
    reason: str = ""

    @property
    def endless(self) -> str:
        """Return a line about a job that does not start unless a person does something; empty if it may start."""
        if not _FOR_EVER.search(self.reason):
            return ""
        told = f"job {self.job_id} does not start by itself: {self.why}"
        return "; ".join([told, *(f"`{command}`" for command in self.commands())])

    @property
    def why(self) -> str:
        """Return what it waits for, with Slurm's own word; empty if it does not wait."""
        if not self.reason:
            return ""
        phrase = next((phrase for _, phrase, _, _ in self._rows()), "")
        return f"{phrase} ({self.reason})" if phrase else f"it waits for {self.reason}"

    def advice(self) -> Iterable[str]:
        """Yield what to do about it."""
        yield from (advice for _, _, advice, _ in self._rows() if advice)

    def commands(self) -> Iterable[str]:
        """Yield the command that says more about it, or ends it."""
        yield from (command.format(job=quote(self.job_id)) for _, _, _, command in self._rows() if command)

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [row for row in _REASONS if re.search(row[0], self.reason)][:1] if self.reason else []
