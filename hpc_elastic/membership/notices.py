"""A notice: the workers will be stopped soon, and are told so while they go on."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_elastic.rundir.records import NoticeReason

TAKEN_EXIT_CODE = 75  # EX_TEMPFAIL, and `ExitCode.REQUEUE`: a rank that has saved after a notice, and is to go on later


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeGiven:
    """What a head is told about the end that comes, once; it passes it on to all members.

    `seconds_left`: until the workers are stopped, from the moment in which the head is told; None if that is unknown.
    `by`: who gave it, for people.
    """

    reason: NoticeReason
    seconds_left: float | None
    by: str

    def describe(self) -> str:
        """Return the notice for people, as a line of its own."""
        left = "" if self.seconds_left is None else f" in about {self.seconds_left:.0f} s"
        return f"notice: the workers will be stopped{left} ({self.reason.replace('_', ' ')}, {self.by})"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeCounts:
    """A number of calls of `notice_received`, and one of heartbeats: how many a rank has made, or a certain one."""

    polls: int
    beats: int
