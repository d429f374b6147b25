"""A stop that a person announces: the workers are told first, and stopped when their time is over; pure.

Theory of operation. The workers get a notice with the reason `operator`, and go on. They are stopped when the seconds
of the announcement are over, as at a cancel; or the end comes at once, when every rank has exited 0, or 75 for "saved".
Where no worker is at work, there is nothing to wait for. Of several announcements the latest that ends the run says
what becomes of it, else the latest one; the earliest time counts.
"""

from __future__ import annotations

from dataclasses import dataclass

NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStop:
    """A stop that `by` asked for; the workers are stopped after `seconds_left`.

    `is_requeue`: the job is to be started again after it, else the run ends.
    """

    by: str
    seconds_left: float
    is_requeue: bool = False

    def describe_end(self, how: str = "") -> str:
        """Return the cause of the allocation's end for people; `how`: what the workers did about it."""
        told = f"{self.by} asked for another start of the job" if self.is_requeue else f"stopped by {self.by}"
        return f"{told}: {how}" if how else told


class PendingStop:
    """The announced stop of one head, and when it is due."""

    __slots__ = ("asked", "due_at")

    def __init__(self) -> None:
        self.asked: OperatorStop | None = None
        self.due_at = NEVER  # monotonic seconds; never again, once it was acted on

    def announce(self, stop: OperatorStop, now: float, *, has_workers: bool) -> None:
        """Take in an announcement."""
        if self.asked is None or self.asked.is_requeue or not stop.is_requeue:
            self.asked = stop
        self.due_at = min(self.due_at, now + stop.seconds_left) if has_workers else now

    def take_due(self, now: float) -> OperatorStop | None:
        """Return the stop that is to be carried out now, once; None if none is."""
        if now < self.due_at:
            return None
        self.due_at = NEVER
        return self.asked
