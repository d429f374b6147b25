"""The choice of the agent that ends the Slurm job when the run is over and the batch script's node is gone."""

from __future__ import annotations

from dataclasses import replace

from hpc_elastic.membership.messages import Join
from hpc_elastic.membership.roster import Roster
from hpc_elastic.membership.succession import LostHead
from hpc_elastic.rundir.records import RunResultRecord, World

# The nodes, by id, whose agents find out at their start whether they could end the job. They are few, because a
# controller that thousands ask at once answers none. The first node is not among them: the script runs there, and it
# is gone when another node has to end the job.
ASKING_NODES = range(1, 5)
# How many agents see to the end of the job, each after the ones before it. They are few, because a controller that does
# not answer is asked again by each of them.
MOST_ENDERS = 4


class JobEnd:
    """The node on which srun runs, and whether that node was lost.

    A machine that closed the connection of its dead agent is still up, and its script ends the job as always. One that
    was silent before may have started again, without its script.

    A successor takes a launch node that was with the head before for lost until it joins: that head may have seen it
    go since the record of its world was written, and has told nobody. Whoever ends a job asks that machine first. That
    is no loss that somebody has seen: it counts only where the run is over for all.

    Args:
        before: the world that this head carries on from, if there is one.
        lost: the head whose place this one takes, if it does.
    """

    __slots__ = ("_is_lost", "_is_presumed", "_launch_node")

    def __init__(self, before: World | None, lost: LostHead | None) -> None:
        self._launch_node = before.launch_node if before is not None else None
        self._is_lost = before is not None and before.is_launch_node_lost
        self._is_presumed = before is not None and _had_launch_node(before)
        if lost is not None and lost.node is not None and lost.node == self._launch_node:
            self._is_lost, self._is_presumed = not lost.is_dead or lost.was_silent, False

    def joined(self, join: Join) -> None:
        """Record that a node has joined."""
        if join.is_launch_host:
            self._launch_node = join.node
        elif join.launch_node and self._launch_node is None:  # its own agent may never come
            self._launch_node = join.launch_node
        if join.node == self._launch_node:
            self._is_lost = self._is_presumed = False

    def lost(self, node: str, *, is_agent_alone: bool) -> None:
        """Record the loss of a node; `is_agent_alone` if its machine reported at once that the agent has ended."""
        if node == self._launch_node and not is_agent_alone:
            self._is_lost = True

    def noted_in(self, world: World) -> World:
        """Return the world with the launch node and whether it is lost, which the next head has to know."""
        return replace(world, launch_node=self._launch_node, is_launch_node_lost=self._is_lost or self._is_presumed)

    def is_agent_away(self, roster: Roster) -> bool:
        """Return whether the launch node's agent is gone; its machine may be there still, or may have gone after it."""
        return self._launch_node is not None and roster.get(self._launch_node) is None

    @property
    def is_known_lost(self) -> bool:
        """Return whether somebody has seen that the launch node was lost."""
        return self._is_lost

    def is_ours(self, *, is_settled: bool) -> bool:
        """Return whether the agents have to end the job, because the launch node is lost.

        Args:
            is_settled: no other agent can go on with the run.
        """
        return self._is_lost or (self._is_presumed and is_settled)

    def who(self, roster: Roster, own: str) -> tuple[str, ...]:
        """Return the nodes whose agents see to the end of the job: the first ends it, the others if it is still there.

        An agent that got an answer from Slurm at its start comes first. If there is none, the first agent by node id
        tries: a controller that did not answer then may answer now, and an allocation that nobody ends is paid for
        until its time limit. The head's own agent, which leaves last, is the second. Of the others the next one that
        got an answer stands by, and the last one: nodes of one rack, which may go together, have ids in a row.

        Args:
            roster: the agents that are here.
            own: the head's node.
        """
        joins = sorted((member.join for member in roster), key=lambda join: (not join.can_end_job, join.node_id))
        nodes = [join.node for join in joins]
        second = [own] if own in nodes else []
        return tuple(dict.fromkeys([*nodes[:1], *second, *nodes[1:2], *nodes[-1:], *nodes]))[:MOST_ENDERS]


def is_left_to_readers(result: RunResultRecord, world: World, lost: LostHead, *, was_there: bool) -> bool:
    """Return whether an agent that learns from the run directory that the run is over has to end the Slurm job.

    The head that wrote the result may be gone before it has told anybody. Another agent may have been told, and ends
    the job as well: that is for nothing, and does no harm.

    Args:
        result: the run's result.
        world: the latest one.
        lost: the head that this agent has lost.
        was_there: that head had opened this world while this agent was with it, in the world or as a spare.
    """
    if result.written_by == world.launch_node:
        return False
    job_end = JobEnd(world, lost if was_there else None)
    return job_end.is_known_lost


def _had_launch_node(world: World) -> bool:
    """Return whether the launch node was with the head as it opened this world, with a part in it or as a spare."""
    names = {node.node for node in world.nodes} | {spare.node for spare in world.spares}
    return world.launch_node in names
