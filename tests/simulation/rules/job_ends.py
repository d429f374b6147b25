"""Who ends the job once the run is over: the script, or one agent where the node of the batch script cannot.

`agent.job_end` is what agents do when they have left, one after the other; here that is made up at the end of the run.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hpc_elastic.membership.actions import HeadOver, Leave
from hpc_elastic.membership.messages import End
from hpc_elastic.membership.timing import MANY, Timing
from tests.simulation.rules.invariants import require
from tests.simulation.scenario import Fault

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

MOST_ENDERS = 4  # agents that ask Slurm, one after the other
CUTS = "partition", "one_way", "unreachable", "stall_link", "reset"  # faults after which a head may not hear who leaves
SILENT_S = 0.5  # and more: how long a node is not heard of anyway


class JobEnds:
    """Of one run. All but `is_told` raise BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._told: defaultdict[tuple[object, str], dict[str, End]] = defaultdict(dict)  # by head and its node
        self._told_at: dict[tuple[object, str], float] = {}
        self._left: list[tuple[Agent, Leave]] = []
        self._member_left: dict[Agent, Leave] = {}  # as its own part has
        self._over: dict[Agent, HeadOver] = {}  # how its head has ended

    # What happens.

    def is_told(self, head: object, own: str, node: str, end: End) -> None:
        """A head tells a member to leave; `own` is the head's node."""
        self._told[head, own][node] = end
        self._told_at.setdefault((head, own), self._run.clock.now)

    @property
    def enders_told(self) -> list[str]:
        """The nodes whose agents were told to end the job, at once."""
        return [node for told in self._told.values() for node, end in told.items() if end.ends_job]

    def member_leaves(self, agent: Agent, leave: Leave) -> None:
        """An agent's own part is over; a head of its may stay for a while.

        One that leaves by itself, as its workers cannot be killed, or it got a TERM without a head, ends nobody's job.
        """
        has_end = any(agent.name in told for told in self._told.values())  # of its own head, perhaps
        may_end = has_end or bool(self._run.disk.results)
        require(may_end or not leave.ends_job, f"{agent.name} leaves by itself, and ends the job: {leave.cause}")
        self._member_left[agent] = leave

    def is_over(self, agent: Agent, head: object, over: HeadOver) -> None:
        """The head of an agent is over: it has nobody look for the script if the agent beside that was there."""
        is_beside_script_here = self._run.agents[0].name in self._told.get((head, agent.name), {})
        what = f"{agent.name} has the script looked for, and has told the agent beside it that the run is over"
        require(not (over.looks_for_script and is_beside_script_here), what)
        have_left = {each.name for each, leave in self._left if leave.ends_job and not each.process.has_ever_frozen}
        told = self._told.get((head, agent.name), {})
        is_heard = not (agent.process.has_ever_frozen or any(f.what in CUTS for f in self._run.scenario.faults))
        enders = [node for node, end in told.items() if end.ends_job and node in have_left and is_heard]
        require(not (over.ends_job and enders), f"{agent.name} ends the job, too, beside {enders}")
        self._over[agent] = over

    def leaves(self, agent: Agent, leave: Leave) -> None:
        """An agent has left, and sees to the end of the job if that is left to it: by its own part, or by its head."""
        own, over = self._member_left[agent], self._over.get(agent)
        told = own.ends_job or (over is not None and over.ends_job), over is not None and over.looks_for_script
        does = leave.ends_job, leave.looks_for_script
        require(does == told, f"{agent.name} sees to the end of the job (at once, later): {does}, and was told {told}")
        self._left.append((agent, leave))
        agent.ends_job = leave.ends_job

    def _settle(self) -> None:
        """Have those that are left do what they were told to, if none before them has.

        Slurm says that a job was started again: then no agent of an earlier start ends it.
        """
        there = [(agent, leave) for agent, leave in self._left if agent.is_powered and agent in self._run.agents]
        standing_by = [(leave.stands_by, agent.number, agent) for agent, leave in there if leave.stands_by]
        looking = [(0, agent.number, agent) for agent, leave in there if leave.looks_for_script]
        if any(agent.ends_job for agent in self._run.everybody):
            return
        is_host_gone = not self._run.agents[0].is_powered
        for _, _, agent in sorted(standing_by)[:1] + (looking[:1] if is_host_gone else []):
            agent.ends_job = True

    # What must come of it.

    def check_end(self) -> None:
        """The agents end the job if, and only if, the node of the batch script cannot."""
        self._check_told()
        self._settle()
        run = self._run
        enders = [agent.name for agent in run.everybody if agent.ends_job]
        if not run.witness.kinds:
            require(not enders, f"{enders} end the job, whose script is there")
        kinds = [fault.what for fault in run.scenario.faults]
        is_up = len(kinds) == 1 and kinds[0] == "kill_agent" and max(run.scenario.delays_s) < 0.1
        require(not (is_up and enders), f"{enders} end the job, and the machine of its script was never away")
        host = run.agents[0]
        # Where its agent alone was killed at first, the machine is there, for all that is known, and its script too.
        is_lost = not host.is_powered and not host.was_killed and host.died_at < run.disk.ended_at and not run.earlier
        # A result on its way to the disk when its power went is the last thing that the host did, as an earlier one.
        is_lost = is_lost and not (run.disk.results and run.disk.results[0].written_by == host.name)
        is_told = any(agent.is_told and agent.exit_code is not None for agent in run.agents if agent is not host)
        # Lost before any attempt it is known to those alone that have found out at their start.
        was_member = any(host.name in claim.members for claim in run.disk.claims.values())
        if is_lost and was_member and is_told and not run.witness.is_requeued and not self._is_reset_forged(host):
            require(bool(enders), "nobody ends the job, whose script is lost")
        if not host.is_powered and any(self._may_look(*key, host) for key in self._told):
            require(
                bool(enders), "nobody ends the job, whose script's node was lost before its agent was there, or after"
            )

        if any(self._has_awaited(*key, host) for key in self._told):
            require(bool(enders), "nobody ends the job, whose script's node has fallen silent as it was told to leave")

    def _has_awaited(self, head: object, own: str, host: Agent) -> bool:
        """Whether a head has waited for the agent beside the script to leave, whose machine had lost its power."""
        run, told = self._run, self._told[head, own]
        timing = Timing(lease_s=run.scenario.lease_s, profile=run.scenario.profile)
        world = run.disk.latest
        nodes = len(world.nodes) if world is not None and host.name in {each.node for each in world.nodes} else MANY
        closes_at = self._told_at[head, own] + timing.closes_within_s(1)
        was_silent_s = closes_at - host.died_at - SILENT_S - 4 * max(run.scenario.delays_s)
        is_silent = (
            not host.is_powered and host.exit_code is None and was_silent_s > timing.silent_before_restart_s(nodes)
        )
        has_left = any(agent.name == own and agent.is_powered and agent in run.agents for agent, _ in self._left)
        is_known = host.name in told and host.name != own and all(end.is_settled for end in told.values())
        return is_silent and is_known and has_left and host.died_at >= self._told_at[head, own] and not run.earlier

    def _may_look(self, head: object, own: str, host: Agent) -> bool:
        """Whether a head has ended the run, and left, that knows that the agent beside the script was not there."""
        told, world = self._told[head, own], self._run.disk.latest
        is_known = any(self._run.agent(node).knows_launch_node for node in told)
        is_known = is_known or (world is not None and world.launch_node == host.name)
        has_left = any(agent.name == own and agent.is_powered and agent in self._run.agents for agent, _ in self._left)
        is_settled = all(end.is_settled for end in told.values())
        return is_known and host.name not in told and is_settled and has_left

    def _check_told(self) -> None:
        """Of those that are told to leave few see to the job's end, each after those before it, the head the second.

        Whoever has had an answer from the scheduler is the first, of these the one with the lowest number.
        """
        for (_, own), told in self._told.items():
            numbers = {node: self._run.agent(node).number for node in told}
            can = {node for node in told if self._run.agent(node).can_end_job}
            first = min(told, key=lambda node: (node not in can, numbers[node]))
            enders = [node for node, end in told.items() if end.ends_job]
            require(enders in ([], [first]), f"{enders} end the job, and of {sorted(told)} {first} is the first")
            turns = {node: end.stands_by for node, end in told.items() if end.stands_by}
            what = f"{enders} end the job, {turns} stand by, and {own} tells {sorted(told)}"
            count = min(MOST_ENDERS, len(told)) - 1 if enders else 0
            require(sorted(turns.values()) == [*range(1, count + 1)] and not turns.keys() & set(enders), what)
            require(not count or own not in told or own == first or turns[own] == 1, what)

    def _is_reset_forged(self, host: Agent) -> bool:
        """Whether somebody has reset a connection in the name of a machine that went down just before, or just after.

        No machine that starts again answers so soon: who sees that takes its agent alone for dead. Of a machine that
        goes down before its members have come back to it, they see no more than the reset.
        """
        run, timing = self._run, Timing(lease_s=self._run.scenario.lease_s, profile=self._run.scenario.profile)
        resets = [moment for moment, _, what in run.events if isinstance(what, Fault) and what.what == "reset"]
        return any(abs(moment - host.died_at) < timing.silent_before_restart_s(MANY) for moment in resets)
