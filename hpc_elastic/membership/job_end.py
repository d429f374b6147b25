"""Who ends the Slurm job when the run is over and the node of the batch script is gone."""

from __future__ import annotations

from dataclasses import replace

from hpc_elastic.membership.messages import Join
from hpc_elastic.membership.roster import Roster
from hpc_elastic.membership.succession import LostHead
from hpc_elastic.rundir.records import World

# The nodes, by id, whose agents find out at their start whether they could end the job. A few: a controller that is
# asked by thousands at once serves nobody. Not the first, where the script runs: it is gone when another has to do it.
ASKING_NODES = range(1, 5)


class JobEnd:
    """The node on which srun runs, and whether it was lost.

    A machine that closed the connection of its dead agent lives, and its script ends the job as always.

    Args:
        before: the world that this head carries on from, if there is one.
        lost: the head that it takes the place of, if it does.
    """

    __slots__ = ("_is_lost", "_launch_node")

    def __init__(self, before: World | None, lost: LostHead | None) -> None:
        self._launch_node = before.launch_node if before is not None else None
        self._is_lost = before is not None and before.is_launch_node_lost
        if lost is not None and lost.node is not None:
            self.lost(lost.node, is_gone=lost.is_dead)

    def joined(self, join: Join) -> None:
        """A node is here."""
        if join.is_launch_host:
            self._launch_node = join.node
        if join.node == self._launch_node:
            self._is_lost = False

    def lost(self, node: str, *, is_gone: bool) -> None:
        """A node is lost; `is_gone` if its machine said so."""
        if node == self._launch_node and not is_gone:
            self._is_lost = True

    def noted_in(self, world: World) -> World:
        """The world, with what its next head has to know."""
        return replace(world, launch_node=self._launch_node, is_launch_node_lost=self._is_lost)

    def is_ours(self) -> bool:
        """Whether nobody but the agents will end the job."""
        return self._is_lost

    def who(self, roster: Roster) -> str | None:
        """The node whose agent ends the job, None if there is none.

        One whose question to Slurm was answered at its start comes first. Without such a one the first tries: a
        controller that was silent then may answer now, and an allocation that nobody ends is paid for until its time
        limit.
        """
        joins = [member.join for member in roster]
        return min(joins, key=lambda join: (not join.can_end_job, join.node_id)).node if joins else None
