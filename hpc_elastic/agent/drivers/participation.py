"""A node's part in membership: its member, that member's heads, and the listener that other agents dial."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from hpc_elastic.agent.drivers.head_side import HeadSide
from hpc_elastic.agent.drivers.head_start import HeadStart
from hpc_elastic.agent.drivers.local_member import LocalMember, MemberOutputs
from hpc_elastic.agent.net.listener import Listener, most_unauthenticated
from hpc_elastic.agent.net.transport import ConnectionFactory
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.telemetry import Telemetry
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.workers.node_workers import NodeWorkers, TermWatch
from hpc_elastic.membership.actions import Leave, Level
from hpc_elastic.membership.decisions import Decide
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Join
from hpc_elastic.membership.timing import AGENT, Profile, Timing
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.scheduler.allocation import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an agent gives its part in membership to work with.

    Args:
        journal: the run directory.
        disk: the thread for it.
        telemetry: is shown every action.
        make: makes connections.
        leave: ends this agent.
        moved: is told when `Participation.guard_deadline` may have moved.
        guard_deadline: when the guard kills the workers, by its own memory.
        say: takes a line for people.
    """

    journal: Journal
    disk: BackgroundThread
    telemetry: Telemetry
    make: ConnectionFactory
    leave: Callable[[Leave], None]
    moved: Callable[[], None]
    guard_deadline: Callable[[], float]
    say: Callable[[str, Level], None]


class Participation:
    """Puts the parts together; `serve` comes before anything else.

    Args:
        plan: the launch plan.
        place: this node's place.
        join: who this node is.
        listener: where it listens, as the join says.
        ports: where node 0 may listen.
        around: what it works with.
        profile: how fast the fences of the run's agents are.
        decide: the policy of a head that is here, if not the plan's.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        place: Allocation,
        *,
        join: Join,
        listener: socket.socket,
        ports: list[int],
        around: Surroundings,
        profile: Profile = AGENT,
        decide: Decide | None = None,
    ) -> None:
        journal, disk, telemetry = around.journal, around.disk, around.telemetry
        self._profile = profile
        self.member = LocalMember(
            Member(join, run=plan.run, timing=Timing(lease_s=plan.elastic.lease_s, profile=profile)),
            plan=plan,
            place=place,
            journal=journal,
            disk=disk,
            telemetry=telemetry,
            outputs=MemberOutputs(
                tell=lambda message: self.heads.tell(message),
                seek=lambda lost: self.heads.seek(lost),
                leave=around.leave,
                moved=around.moved,
                guard_deadline=around.guard_deadline,
                say=around.say,
            ),
        )
        self.heads = HeadSide(
            plan,
            place,
            member=self.member,
            own=join.agent,
            ports=ports,
            journal=journal,
            disk=disk,
            head_start=HeadStart(
                plan, place, journal=journal, disk=disk, telemetry=telemetry, profile=profile, decide=decide
            ),
            make=around.make,
            moved=around.moved,
            say=around.say,
        )
        most, say = most_unauthenticated(len(place.nodes)), around.say
        self._listener = Listener(listener, around.make, self.heads, most=most, say=lambda text: say(text, "warning"))

    def serve(self, workers: NodeWorkers, signals: TermWatch) -> None:
        """These are the node's workers, and who knows whether they got a TERM."""
        self.member.serve(workers, signals)

    def guard_deadline(self) -> float:
        """When the guard kills the workers: a moment after the agent should have, for the member or the head here."""
        return min(self.member.fence_deadline(), self.heads.fence_deadline()) + self._profile.guard_s

    async def close(self) -> None:
        """The member has left: the head that is here goes after all others, and nobody is let in any more."""
        await self.heads.close()
        await self._listener.close()

    async def abandon(self) -> None:
        """Goes without a word, as a process that is killed: the others go on at once, for a close means a death."""
        await self.heads.abandon()
        await self._listener.close()
