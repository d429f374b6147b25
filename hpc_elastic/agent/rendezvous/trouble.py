"""What keeps this agent from the head: when it is worth telling, in words and for the head to read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from hpc_elastic.agent.net.reach import Finding
from hpc_elastic.agent.rendezvous.findings import Findings
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.errors import MissingNode, RendezvousCause
from hpc_elastic.membership.actions import Level
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.scheduler.allocation import Allocation

# How long after the start of the search a finding counts. That nobody listens is normal while node 0 starts.
SETTLES_S = 2.0
STARTS_WITHIN_S = 5.0
LAST_WORD_WITHIN_S = 10.0
_NORMAL_AT_FIRST = frozenset({RendezvousCause.REFUSED, RendezvousCause.SILENT})
_NOTHING = Finding(cause=RendezvousCause.SILENT, detail="has not tried long enough to say why")


class Trouble:
    """The latest finding of one search.

    Args:
        plan: the launch plan.
        place: this node's place.
        disk: the thread for the run directory.
        say: where lines for people go.
        versions: what this node runs.
        began: monotonic seconds, as in every method: when the search began.
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
    ) -> None:
        self._findings = Findings(plan, place)
        self._place = place
        self._disk = disk
        self._say = say
        self._versions = versions
        self._began = began
        self._told: Finding | None = None
        self._finding = _NOTHING
        self.since = began

    @property
    def detail(self) -> str:
        """The finding in words; goes on from this node's name."""
        return self._finding.detail

    @property
    def is_normal_at_first(self) -> bool:
        """Whether it also comes of a head that only starts or is busy."""
        return self._finding.cause in _NORMAL_AT_FIRST

    def met(self, finding: Finding, now: float) -> None:
        """This is what is wrong now."""
        if not _is_same(finding, self._finding):
            self.since = now
        self._finding = finding

    def tell(self, now: float, tries: int) -> None:
        """Tells people and the head, if it is news and no matter of the first seconds."""
        finding = self._finding
        settles_s = STARTS_WITHIN_S if self.is_normal_at_first else SETTLES_S
        if now < self._began + settles_s or (self._told is not None and _is_same(finding, self._told)):
            return
        self._told = finding
        self._say(finding.detail, "warning")
        self._disk.best_effort(lambda: self._write(finding, tries, gave_up=False))

    def is_over(self) -> None:
        """There is a head."""
        if self._told is not None:
            self._disk.best_effort(self._findings.remove)

    async def give_up(self, tries: int) -> MissingNode:
        """The last word, on disk before this agent ends, unless the file system hangs."""
        finding = self._finding
        written = self._disk.call(lambda: self._write(finding, tries, gave_up=True))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(written, LAST_WORD_WITHIN_S)
        return MissingNode(node=self._place.node, cause=finding.cause, detail=finding.detail)

    def _write(self, finding: Finding, tries: int, *, gave_up: bool) -> None:
        self._findings.write(finding, tries=tries, gave_up=gave_up, versions=self._versions)


def _is_same(one: Finding, other: Finding) -> bool:
    return (one.cause, one.address, one.port) == (other.cause, other.address, other.port)
