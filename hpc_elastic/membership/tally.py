"""What the members of a world reported: who is how far, failures and return values by global rank."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hpc_elastic.membership import messages
from hpc_elastic.membership.roster import RosterEntry
from hpc_elastic.rundir.records import FailureRecord, World


class Tally:
    """The reports of the workers that run or ran last, role by role."""

    __slots__ = ("failures", "return_values")

    def __init__(self) -> None:
        self.failures: dict[str, FailureRecord] = {}
        self.return_values: dict[str, Any] = {}

    def record(self, member: RosterEntry, message: messages.Report) -> None:
        """A member said something of its workers; of a failure that comes twice the first word counts."""
        if isinstance(message, messages.Started):
            member.has_started = True
        elif isinstance(message, messages.Ended):
            member.has_ended = True
        elif isinstance(message, messages.Failed):
            self.failures.setdefault(str(message.failure.rank), message.failure)
        elif isinstance(message, messages.Finished):
            member.is_finished = True
            self.return_values.update(message.return_values)
        elif isinstance(message, messages.Stopped):
            member.is_stopped = True
            member.offer_store_port(message.store_port)
            for failure in message.failures:
                self.failures.setdefault(str(failure.rank), failure)

    def forget(self, world: World, roles: Collection[str]) -> None:
        """The workers of these roles start anew."""
        kept = {str(rank.rank) for rank in world.ranks if rank.role not in roles}
        self.failures = {rank: failure for rank, failure in self.failures.items() if rank in kept}
        self.return_values = {rank: value for rank, value in self.return_values.items() if rank in kept}
