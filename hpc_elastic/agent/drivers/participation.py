"""Assembles a node's part in membership: its member, that member's heads, and the listener that other agents dial."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from hpc_elastic.agent.drivers.head_side import HeadSide
from hpc_elastic.agent.drivers.head_start import HeadStart
from hpc_elastic.agent.drivers.job_clock import TimeLeft
from hpc_elastic.agent.drivers.local_member import Examine, LocalMember, MemberOutputs
from hpc_elastic.agent.net.listener import Listener, most_unauthenticated
from hpc_elastic.agent.net.transport import ConnectionFactory
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.telemetry import Telemetry
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.workers.circumstances import Circumstances
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
    """The services that an agent provides to its `Participation`.

    Args:
        journal: the run directory.
        disk: the thread for access to the run directory.
        telemetry: is shown every action.
        make: makes connections.
        leave: ends this agent.
        moved: is called when `Participation.guard_deadline` may have changed.
        guard_deadline: returns when the guard kills the workers, read from the memory that it shares.
        say: logs a line for people.
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
    """Creates the member, the head side and the listener of one node, and connects them; call `serve` first.

    Args:
        plan: the launch plan.
        place: this node's place.
        join: this node's join message.
        listener: the socket that listens on the address and port in `join`.
        ports: the ports on which node 0 may listen.
        around: the services of the agent around it.
        profile: how fast the fences of the run's agents are.
        decide: the restart policy of a local head, if not the plan's.
        time_left: what this agent knows about the end of its job; None: nobody sees to the time.
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
        time_left: TimeLeft | None = None,
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
                discover_head=lambda lost: self.heads.discover_head(lost),
                leave=around.leave,
                moved=around.moved,
                guard_deadline=around.guard_deadline,
                runs_until=lambda: around.guard_deadline() - profile.guard_s,
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
                plan,
                place,
                journal=journal,
                disk=disk,
                telemetry=telemetry,
                profile=profile,
                decide=decide,
                time_left=time_left,
            ),
            make=around.make,
            moved=around.moved,
            say=around.say,
        )
        most, say = most_unauthenticated(len(place.nodes)), around.say
        self._listener = Listener(listener, around.make, self.heads, most=most, say=lambda text: say(text, "warning"))

    def serve(
        self,
        workers: NodeWorkers,
        signals: TermWatch,
        circumstances: Circumstances | None = None,
        examine: Examine | None = None,
    ) -> None:
        """Sets the node's workers, the watch for a TERM that they got, what the node says of their ends, its checks."""
        self.member.serve(workers, signals, circumstances)
        if examine is not None:
            self.member.watch_health(examine)

    def guard_deadline(self) -> float:
        """Returns when the guard has to kill the workers: `guard_s` after the member's or local head's own deadline."""
        return min(self.member.fence_deadline(), self.heads.fence_deadline()) + self._profile.guard_s

    def completed(self, leave: Leave) -> Leave:
        """Returns this agent's `Leave` with what a local head, which ends later, has found about the job's end."""
        heads = self.heads
        return replace(leave, ends_job=leave.ends_job or heads.ends_job, looks_for_script=heads.looks_for_script)

    async def close(self) -> None:
        """Ends this part after the member has left: a local head ends after all others, then the listener closes."""
        await self.heads.close()
        await self._listener.close()

    async def abandon(self) -> None:
        """Closes all connections without a message, as when this process is killed; the others then go on at once."""
        await self.heads.abandon()
        await self._listener.close()
