"""The tally of failures, by global rank, that the members of a world reported of their workers."""

from __future__ import annotations

from hpc_elastic.membership import messages
from hpc_elastic.rundir.records import FailureRecord, World


class Tally:
    """The failures of the workers that run or ran last, which are forgotten role by role."""

    __slots__ = ("failures",)

    def __init__(self) -> None:
        self.failures: dict[str, FailureRecord] = {}

    def record(self, message: messages.Report) -> None:
        """Record the failures in a member's report.

        The report after all its workers have stopped replaces earlier ones: a worker that failed may have ended with
        another exit code.
        """
        if isinstance(message, messages.Failed):
            self.failures.setdefault(str(message.failure.rank), message.failure)
        elif isinstance(message, messages.Stopped):
            self.failures.update({str(failure.rank): failure for failure in message.failures})

    def forget(self, world: World) -> None:
        """Forget the failures of the roles whose workers start again in the attempt of this world."""
        if not self.failures:
            return
        running = {role.role for role in world.roles if role.attempt != world.attempt}
        kept = {str(rank.rank) for rank in world.ranks if rank.role in running}
        self.failures = {rank: failure for rank, failure in self.failures.items() if rank in kept}
