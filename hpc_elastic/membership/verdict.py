"""What is decided about the attempt, and whose workers it concerns."""

from __future__ import annotations

from dataclasses import replace

from hpc_elastic.membership.decisions import Decision, Finish, Ignore, Restart
from hpc_elastic.membership.messages import StopManner


class Verdict:
    """The decision that stands, and the roles whose workers stop or wait for their next start.

    A Finish replaces everything and nothing replaces it. A Restart can only be widened, by a failure
    in a role that runs on: the roles that wait already start with it. A restart for a lost node takes
    the place of one for a worker's failure, which most likely came of the loss, and is not paid for then.
    """

    __slots__ = ("_roles", "decision")

    def __init__(self) -> None:
        self.decision: Restart | Finish | None = None
        self._roles: frozenset[str] | None = None

    @property
    def roles(self) -> frozenset[str] | None:
        """The roles that wait for the next attempt; None for all, and before the first one."""
        return self._roles

    @property
    def is_final(self) -> bool:
        """Whether the run ends, whatever comes."""
        return isinstance(self.decision, Finish)

    def gathers(self) -> None:
        """The workers are gone and the next attempt is being opened: the decision is carried out so far."""
        self.decision = None

    def opens(self) -> None:
        """Everybody has workers."""
        self.decision = None
        self._roles = frozenset()

    def take(self, decision: Decision) -> Restart | Finish | None:
        """The decision as it stands from now on; None if it changes nothing."""
        if isinstance(decision, Ignore) or self.is_final:
            return None
        if isinstance(decision, Restart):
            decision = replace(decision, roles=self._widened(decision.roles))
            standing = self.decision
            is_harder = decision.manner is StopManner.FENCE and not (standing and standing.manner is StopManner.FENCE)
            if isinstance(standing, Restart) and decision.roles == self._roles and not is_harder:
                return None
        self.decision = decision
        self._roles = decision.roles if isinstance(decision, Restart) else None
        return decision

    def _widened(self, roles: frozenset[str] | None) -> frozenset[str] | None:
        return None if roles is None or self._roles is None else roles | self._roles
