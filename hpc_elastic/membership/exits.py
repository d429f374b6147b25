"""How this node's workers ended, and which of that still has to be judged or written down."""

from __future__ import annotations

import signal

from hpc_elastic.membership.timing import TERM_SETTLES_S
from hpc_elastic.rundir.records import FailureRecord

ENDED_BY_TERM = (-signal.SIGTERM, 128 + signal.SIGTERM)  # killed, or left as a shell says it
NEVER = float("inf")


class Exits:
    """The exits of one attempt's workers, by local rank.

    A worker that ended by a TERM is held back for a moment: a TERM to the whole step is no failure of
    the worker, and the agent's own may be on its way. A failure counts once its error file is written.
    """

    __slots__ = ("_ended", "_held", "_recording", "failures", "judge_held_at")

    def __init__(self) -> None:
        self.judge_held_at: float = NEVER
        self.clear()

    def clear(self) -> None:
        """No worker has ended."""
        self.failures: dict[str, FailureRecord] = {}  # by global rank
        self._ended: set[int] = set()
        self._recording: set[int] = set()
        self.forget_held()

    def ended_well(self, local_rank: int) -> bool:
        """A worker exited 0; whether it is the first one here."""
        self._ended.add(local_rank)
        return len(self._ended) == 1

    def hold(self, local_rank: int, exitcode: int, now: float) -> None:
        """A worker ended by a TERM that may be one from outside."""
        self._held.append((local_rank, exitcode))
        self.judge_held_at = min(self.judge_held_at, now + TERM_SETTLES_S)

    def take_held(self) -> list[tuple[int, int]]:
        """Local rank and exit code of those held back, who failed after all."""
        held = self._held
        self.forget_held()
        return held

    def forget_held(self) -> None:
        """The TERM was one for the whole node: nobody failed."""
        self._held: list[tuple[int, int]] = []
        self.judge_held_at = NEVER

    def records(self, local_rank: int) -> None:
        """The error file of a failed worker is being written."""
        self._recording.add(local_rank)

    def recorded(self, failure: FailureRecord) -> None:
        """It is written."""
        self._recording.discard(failure.local_rank)
        self._ended.add(failure.local_rank)
        self.failures[str(failure.rank)] = failure

    @property
    def is_settled(self) -> bool:
        """Whether every failure so far is written down."""
        return not self._recording

    def are_all_over(self, workers: int) -> bool:
        """Whether so many workers have ended, and every failure among them is written down."""
        return self.is_settled and not self._held and len(self._ended) == workers
