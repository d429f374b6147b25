"""What the members of a world reported of their workers: failures by global rank."""

from __future__ import annotations

from hpc_elastic.membership import messages
from hpc_elastic.rundir.records import FailureRecord, World


class Tally:
    """The reports of the workers that run or ran last, role by role."""

    __slots__ = ("failures",)

    def __init__(self) -> None:
        self.failures: dict[str, FailureRecord] = {}

    def record(self, message: messages.Report) -> None:
        """A member said something of its workers.

        Its word when they have all stopped counts: a worker that failed may have ended with another exit code.
        """
        if isinstance(message, messages.Failed):
            self.failures.setdefault(str(message.failure.rank), message.failure)
        elif isinstance(message, messages.Stopped):
            self.failures.update({str(failure.rank): failure for failure in message.failures})

    def forget(self, world: World) -> None:
        """The workers of the roles that start in the attempt of this world start anew."""
        if not self.failures:
            return
        running = {role.role for role in world.roles if role.attempt != world.attempt}
        kept = {str(rank.rank) for rank in world.ranks if rank.role in running}
        self.failures = {rank: failure for rank, failure in self.failures.items() if rank in kept}
