"""What the members of a world reported of their workers: failures and return values by global rank."""

from __future__ import annotations

from typing import Any

from hpc_elastic.membership import messages
from hpc_elastic.rundir.records import FailureRecord, World


class Tally:
    """The reports of the workers that run or ran last, role by role."""

    __slots__ = ("failures", "return_values")

    def __init__(self) -> None:
        self.failures: dict[str, FailureRecord] = {}
        self.return_values: dict[str, Any] = {}

    def record(self, message: messages.Report) -> None:
        """A member said something of its workers.

        Its word when they have all stopped counts: a worker that failed may have ended with another exit code.
        """
        if isinstance(message, messages.Failed):
            self.failures.setdefault(str(message.failure.rank), message.failure)
        elif isinstance(message, messages.Finished):
            self.return_values.update(message.return_values)
        elif isinstance(message, messages.Stopped):
            self.failures.update({str(failure.rank): failure for failure in message.failures})

    def forget(self, world: World) -> None:
        """The workers of the roles that start in the attempt of this world start anew."""
        if not self.failures and not self.return_values:
            return
        running = {role.role for role in world.roles if role.attempt != world.attempt}
        kept = {str(rank.rank) for rank in world.ranks if rank.role in running}
        self.failures = {rank: failure for rank, failure in self.failures.items() if rank in kept}
        self.return_values = {rank: value for rank, value in self.return_values.items() if rank in kept}
