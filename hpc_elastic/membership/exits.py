"""The exits of this node's workers, and which of them still have to be judged or recorded."""

from __future__ import annotations

import signal

from hpc_elastic.membership.timing import TERM_SETTLES_S
from hpc_elastic.rundir.records import FailureRecord

# Killed by a signal that stops an agent, too, and that Slurm may send to a whole step, or exited with a shell's code
# for it. A Ctrl-C does not reach workers, each of which has a session of its own.
_STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
ENDED_BY_TERM = (*(-number for number in _STOPS), *(128 + number for number in _STOPS))
NEVER = float("inf")


class Exits:
    """The exits of one attempt's workers, by local rank.

    The exit of a worker that a TERM ended is held back for a moment: a TERM to the whole step is no failure of
    the worker, and the agent may be about to get its own. A failure counts once its error file is written.
    """

    __slots__ = ("_again", "_ended", "_ended_well", "_held", "_recording", "failures", "judge_held_at")

    def __init__(self) -> None:
        self.judge_held_at: float
        self.clear()

    def clear(self) -> None:
        """Forget all exits, so that no worker counts as ended."""
        self.failures: dict[str, FailureRecord] = {}  # by global rank
        self._ended: set[int] = set()
        self._ended_well: dict[int, float] = {}  # when it exited 0, by local rank
        self._again: set[int] = set()
        self._recording: set[int] = set()
        self.forget_held()

    def ended_well(self, local_rank: int, now: float) -> bool:
        """Record that a worker exited 0, and return whether it is the first one of this node that has ended."""
        self._ended.add(local_rank)
        self._ended_well[local_rank] = now
        return len(self._ended) == 1

    def doubt_latest(self, now: float) -> None:
        """Take workers that have just exited 0 for stopped: a TERM from outside may be why, and they handle it so."""
        for local_rank in [each for each, at in self._ended_well.items() if now - at < TERM_SETTLES_S]:
            self._ended.discard(local_rank)
            del self._ended_well[local_rank]

    def took_notice(self, local_rank: int) -> bool:
        """Record that a worker exited 75 after a notice; return whether it is the first of this node that has ended."""
        self._ended.add(local_rank)
        self._again.add(local_rank)
        return len(self._ended) == 1

    @property
    def again(self) -> frozenset[int]:
        """Return the local ranks of the workers that exited 75 after a notice."""
        return frozenset(self._again)

    @property
    def ended_well_here(self) -> frozenset[int]:
        """Return the local ranks of the workers that exited 0."""
        return frozenset(self._ended_well)

    def hold(self, local_rank: int, exitcode: int, now: float) -> None:
        """Hold back the exit of a worker that ended by a TERM, which may have come from outside."""
        self._held.append((local_rank, exitcode, now))
        self.judge_held_at = min(self.judge_held_at, now + TERM_SETTLES_S)

    def take_held(self) -> list[tuple[int, int, float]]:
        """Return local rank, exit code and moment of the workers that were held back, which count as failed now."""
        held = self._held
        self.forget_held()
        return held

    def forget_held(self) -> None:
        """Forget the workers that were held back: the TERM was for the whole node, and none of them failed."""
        self._held: list[tuple[int, int, float]] = []
        self.judge_held_at = NEVER

    def records(self, local_rank: int) -> None:
        """Note that the error file of a failed worker is being written."""
        self._recording.add(local_rank)

    def recorded(self, failure: FailureRecord) -> None:
        """Record a failure whose error file is written."""
        self._recording.discard(failure.local_rank)
        self._ended.add(failure.local_rank)
        self.failures[str(failure.rank)] = failure

    def has_failed(self, local_rank: int) -> bool:
        """Return whether a failure of this worker is recorded already."""
        return any(failure.local_rank == local_rank for failure in self.failures.values())

    def was_stopped(self, local_rank: int) -> None:
        """Note that a worker has left no account of a failure: the stop ended it."""
        self._recording.discard(local_rank)

    @property
    def is_settled(self) -> bool:
        """Return whether the error file of every failure so far is written."""
        return not self._recording

    def are_all_over(self, workers: int) -> bool:
        """Return whether this many workers have ended, and the error file of every failure is written."""
        return self.is_settled and not self._held and len(self._ended) == workers
