"""The tally of what the members of a world reported of their workers: failures by global rank, and successes."""

from __future__ import annotations

from hpc_elastic.failures.root_cause import ObservedFailure
from hpc_elastic.membership import messages
from hpc_elastic.rank_set import parse_ranks
from hpc_elastic.rundir.records import FailureRecord, World


class Tally:
    """The failures of the workers that run or ran last, which are forgotten role by role."""

    __slots__ = ("_answered", "_heard_at", "again", "failures", "paused", "step", "succeeded", "waiting")

    def __init__(self) -> None:
        self.failures: dict[str, FailureRecord] = {}
        self.succeeded: set[int] = set()  # global ranks that had exited 0 when their node was stopped
        self.waiting: set[int] = set()  # global ranks that waited for others when their stacks were taken
        self.paused: set[int] = set()  # global ranks that a signal or a debugger had stopped
        self.again: set[int] = set()  # global ranks that exited 75 after a notice, on nodes where all have ended
        self.step: int | None = (
            None  # the furthest that a heartbeat has named, of any attempt, as stopped nodes report it
        )
        self._heard_at: dict[str, float] = {}
        self._answered: set[str] = set()  # failed ranks whose restart is decided and charged, and has not begun

    def record(self, message: messages.Report, now: float) -> None:
        """Record the failures in a member's report, which came at `now`, in monotonic seconds.

        The report after all its workers have stopped replaces earlier ones: a worker that failed may have ended with
        another exit code.
        """
        if isinstance(message, messages.Failed):
            self.failures.setdefault(str(message.failure.rank), message.failure)
            self._heard_at.setdefault(str(message.failure.rank), now)
        elif isinstance(message, messages.Finished):
            self.again.update(parse_ranks(message.again))
        elif isinstance(message, messages.Stopped):
            self.succeeded.update(parse_ranks(message.succeeded))
            self.waiting.update(parse_ranks(message.waiting))
            self.paused.update(parse_ranks(message.paused))
            if message.step is not None:
                self.step = message.step if self.step is None else max(self.step, message.step)
            for failure in message.failures:
                self.failures[str(failure.rank)] = failure
                self._heard_at.setdefault(str(failure.rank), now)

    def observed(self) -> list[ObservedFailure]:
        """Return the failures that no restart has answered yet, in the order in which they were heard of."""
        open_ = (rank for rank in self.failures if rank not in self._answered)
        heard = sorted(open_, key=lambda rank: self._heard_at[rank])
        return [ObservedFailure(failure=self.failures[rank], at=self._heard_at[rank]) for rank in heard]

    def answer(self) -> None:
        """Take all failures so far for answered: what fails before the next attempt begins has a cause of its own."""
        self._answered.update(self.failures)

    def forget(self, world: World) -> None:
        """Forget the failures of the roles whose workers start again in the attempt of this world."""
        self.succeeded.clear()
        self.waiting.clear()
        self.paused.clear()
        self._answered.clear()
        if not self.failures and not self.again:
            return
        running = {role.role for role in world.roles if role.attempt != world.attempt}
        kept = {str(rank.rank) for rank in world.ranks if rank.role in running}
        self.failures = {rank: failure for rank, failure in self.failures.items() if rank in kept}
        self._heard_at = {rank: at for rank, at in self._heard_at.items() if rank in kept}
        self.again = {rank for rank in self.again if str(rank) in kept}
