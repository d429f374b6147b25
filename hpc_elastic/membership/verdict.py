"""The decision that stands about the attempt, and the roles whose workers it concerns."""

from __future__ import annotations

from dataclasses import replace

from hpc_elastic.membership.decisions import Finish, RestartWorkers


class Verdict:
    """The decision that stands, and the roles whose workers stop or wait for their next start.

    A Finish replaces any other decision, and no decision replaces it. A restart can only be widened, by a failure
    in a role that runs on: the roles that wait already start with that role. A restart for a lost node takes the
    place of one for a worker's failure, which most likely was a consequence of the loss and is not charged then.
    """

    __slots__ = ("_roles", "decision")

    def __init__(self) -> None:
        self.decision: RestartWorkers | Finish | None = None
        self._roles: frozenset[str] | None = None

    @property
    def roles(self) -> frozenset[str] | None:
        """Return the roles that wait for the next attempt; None for all, and before the first attempt."""
        return self._roles

    @property
    def is_final(self) -> bool:
        """Return whether the decision is final: the run ends, whatever else happens."""
        return isinstance(self.decision, Finish)

    def gathers(self) -> None:
        """Clear the decision, because its workers are gone and the nodes are gathered for the next attempt."""
        self.decision = None

    def attempt_opened(self) -> None:
        """Clear the roles, because an attempt opens and every member has workers; no decision stands."""
        self._roles = frozenset()

    def settle(self, decision: RestartWorkers | Finish) -> None:
        """Replace the decision about a failure by the one about its cause, once the workers are stopped for it.

        A restart keeps its roles, its time and its manner, which were carried out already.
        """
        standing = self.decision
        if isinstance(standing, RestartWorkers) and isinstance(decision, RestartWorkers):
            decision = replace(decision, roles=standing.roles, at=standing.at, manner=standing.manner)
        self.decision = decision
        self._roles = decision.roles if isinstance(decision, RestartWorkers) else None

    def take(self, decision: RestartWorkers | Finish) -> RestartWorkers | Finish | None:
        """Take in a decision, and return the decision that stands from now on; None if nothing changes."""
        if self.is_final:
            return None
        if isinstance(decision, RestartWorkers):
            decision = replace(decision, roles=self._widened(decision.roles))
            standing = self.decision
            is_harder = decision.manner.hardness > (standing.manner.hardness if standing else 0)
            if isinstance(standing, RestartWorkers) and decision.roles == self._roles and not is_harder:
                return None
        self.decision = decision
        self._roles = decision.roles if isinstance(decision, RestartWorkers) else None
        return decision

    def widen(self) -> RestartWorkers | None:
        """Widen a restart of some roles to all, and return it; None if no such restart stands."""
        if not isinstance(self.decision, RestartWorkers) or self._roles is None:
            return None
        self.decision, self._roles = replace(self.decision, roles=None), None
        return self.decision

    def _widened(self, roles: frozenset[str] | None) -> frozenset[str] | None:
        return None if roles is None or self._roles is None else roles | self._roles
