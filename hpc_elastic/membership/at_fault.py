"""Which nodes have no part by a fault of their own, and which ones the next start of the job had better not get."""

from __future__ import annotations

from hpc_elastic.membership.aside import MOST_CARRIED_ON, blamed_nodes
from hpc_elastic.membership.judge import Judge
from hpc_elastic.membership.members import Members
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.membership.unfit import UnfitNodes


class NodesAtFault:
    """The nodes that are unhealthy, cannot take part, or could start no agent, as far as one head knows."""

    def __init__(self, settings: HeadSettings, members: Members, judge: Judge, unfit: UnfitNodes) -> None:
        self._settings = settings
        self._members = members
        self._judge = judge
        self._unfit = unfit

    def _names(self) -> set[str]:
        return {*self._members.roster.unhealthy, *self._unfit.found, *self._members.gathering.at_fault()}

    @property
    def are_why_too_few(self) -> bool:
        """Return whether nodes of which the run has too few are missing by a fault of their own.

        Where they are more than the others, what they lack is most likely nowhere; likewise what most nodes of a role
        lack that they cannot take part.
        """
        at_fault, here = self._names(), self._members.roster.names()
        return 0 < len(at_fault) <= len(here - at_fault) and not self._unfit.are_most_of_a_role()

    @property
    def to_avoid(self) -> tuple[str, ...]:
        """Return the nodes that another start of the job had better not get, those that are blamed last."""
        blamed = blamed_nodes(self._judge.history.set_aside, self._settings.allocation)
        at_fault = self._names()
        ordered = (node for node in self._members.roster.expected if node in at_fault)
        found = (*ordered, *self._members.losses.nodes, *self._judge.aside.nodes, *blamed)
        return tuple(reversed(dict.fromkeys(reversed(found))))[-MOST_CARRIED_ON:]
