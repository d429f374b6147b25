"""Decides when to report what keeps this agent from joining the head, in the log and in a record for the head."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpc_elastic.agent.net.reach import Finding
from hpc_elastic.agent.rendezvous.findings import Findings
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.errors import MissingNode, RendezvousCause
from hpc_elastic.membership.actions import Level
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.scheduler.allocation import Allocation

_NORMAL_AT_FIRST = frozenset({RendezvousCause.REFUSED, RendezvousCause.SILENT})
_NOTHING = Finding(cause=RendezvousCause.SILENT, detail="has not tried long enough to say why")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTimes:
    """When an agent reports what keeps it from joining the head, in seconds.

    `settles_s`: how long after the start of the search a finding is reported. `starts_within_s`: the same for a
    refusal or silence, which is normal while node 0 starts. `last_word_within_s`: how long an agent that gives up
    waits for the disk.
    """

    settles_s: float = 2.0
    starts_within_s: float = 5.0
    last_word_within_s: float = 10.0


REPORT_TIMES = ReportTimes()


class Trouble:
    """The latest finding of one search for the head, and when it was last reported.

    Args:
        plan: the launch plan.
        place: this node's place.
        disk: the thread for the run directory.
        say: logs a line for people.
        versions: the versions of the software on this node.
        began: when the search began, in monotonic seconds, as all times in this class.
        times: when it reports.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        place: Allocation,
        *,
        disk: BackgroundThread,
        say: Callable[[str, Level], None],
        versions: Mapping[str, str],
        began: float,
        times: ReportTimes = REPORT_TIMES,
    ) -> None:
        self._findings = Findings(plan, place)
        self._place = place
        self._disk = disk
        self._say = say
        self._versions = versions
        self._began = began
        self._times = times
        self._told: Finding | None = None
        self._finding = _NOTHING
        self.since = began

    @property
    def detail(self) -> str:
        """The finding in words, as the rest of a sentence that begins with this node's name."""
        return self._finding.detail

    @property
    def is_normal_at_first(self) -> bool:
        """Whether a head that is still starting, or is busy, causes the same finding."""
        return self._finding.cause in _NORMAL_AT_FIRST

    @property
    def is_out_of_reach(self) -> bool:
        """Whether this node cannot route to the head, which may be the head's fault or this node's own."""
        return self._finding.cause is RendezvousCause.CANNOT_ROUTE

    def met(self, finding: Finding, now: float) -> None:
        """Stores the latest finding; `since` restarts if it differs from the one before."""
        if not _is_same(finding, self._finding):
            self.since = now
        self._finding = finding

    def tell(self, now: float, tries: int) -> None:
        """Reports the finding to people and to the head, if it is new and the time in which it is normal has passed."""
        finding = self._finding
        settles_s = self._times.starts_within_s if self.is_normal_at_first else self._times.settles_s
        if now < self._began + settles_s or (self._told is not None and _is_same(finding, self._told)):
            return
        self._told = finding
        self._say(finding.detail, "warning")
        self._disk.best_effort(lambda: self._write(finding, tries, gave_up=False))

    def is_over(self) -> None:
        """Removes the reported finding from disk, as there is a head now."""
        if self._told is not None:
            self._disk.best_effort(self._findings.remove)

    async def give_up(self, tries: int, *, awaits_other: bool = False) -> MissingNode:
        """Writes the final finding to disk, unless the file system hangs, and returns it.

        Args:
            tries: how many there were.
            awaits_other: whether this agent does not end yet, but waits for another one to take the head's place.
        """
        finding = self._finding
        written = self._disk.call(lambda: self._write(finding, tries, gave_up=True, awaits_other=awaits_other))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(written, self._times.last_word_within_s)
        return MissingNode(node=self._place.node, cause=finding.cause, detail=finding.detail)

    def _write(self, finding: Finding, tries: int, *, gave_up: bool, awaits_other: bool = False) -> None:
        self._findings.write(finding, tries=tries, gave_up=gave_up, versions=self._versions, awaits_other=awaits_other)


def _is_same(one: Finding, other: Finding) -> bool:
    return (one.cause, one.address, one.port) == (other.cause, other.address, other.port)
