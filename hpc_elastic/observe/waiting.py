"""Says what Slurm's reason for a job that waits in the queue means, and what to do about it; pure.

The reasons are those of job_reason_codes.html and of job_state_reason_string() in Slurm 22.05 to 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from shlex import quote

WAITING = ("PENDING", "REQUEUED")  # the states in which the job is in the queue
_HELD = "JobHeldUser|requeued in held state|[Ll]aunch failed requeued held|JobHoldMaxRequeue"
# What is found first counts: a pattern of the reason, what it means, what to do, and a command for it.
_REASONS = (
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
