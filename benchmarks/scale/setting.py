"""What the head and the simulated agents of `rendezvous_scale` agree on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpc_elastic.membership.actions import (
    Action,
    DiscoverHead,
    Leave,
    SendToHead,
    StartWorkers,
    StopWorkers,
    WriteNodeResult,
)
from hpc_elastic.membership.authentication import Scope
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Join, Message
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.roles import NodesPlan
from hpc_elastic.rundir.records import Endpoint
from tests.membership.script import a_restart_plan
from tests.plans import make_plan

SECRET = b"s" * 32
SCOPE = Scope(run="run", job_id="42", restart_count=0)
ADDRESS = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One head and its agents."""

    nodes: int
    lease_s: float
    workers: int  # on each node
    run_dir: str
    spread_s: float = 0.0  # over which the agents connect, so that they do not beat together

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"node{number:05}" for number in range(self.nodes))

    def plan(self) -> LaunchPlan:
        return make_plan(
            elastic=replace(make_plan().elastic, lease_s=self.lease_s),
            run="run",
            run_dir=self.run_dir,
            nodes=NodesPlan(min=self.nodes, max=self.nodes),
            workdir="/",
            workers_per_node=self.workers,
            restart=a_restart_plan(10**6, no_progress_limit=10**6),
        )

    def join(self, number: int) -> Join:
        return Join(
            node=f"node{number:05}",
            node_id=number,
            agent=Endpoint(address=ADDRESS, port=20000),
            store_port=25000,
            workers=self.workers,
            role="default",
            versions={"python": "3.11", "hpc_elastic": "0.1", "torch": "2.13"},
        )


def carry_out(member: Member, actions: list[Action]) -> Iterator[Message]:
    """What the member says meanwhile; its workers start and stop at once, and its records are written."""
    for action in actions:
        if isinstance(action, SendToHead):
            yield action.message
        elif isinstance(action, StartWorkers):
            yield from carry_out(member, member.workers_started(action.assign.attempt, {}))
        elif isinstance(action, StopWorkers):
            yield from carry_out(member, member.workers_stopped(action.attempt, (), 26000))
        elif isinstance(action, WriteNodeResult):
            yield from carry_out(member, member.node_result_written(action.result))
        elif isinstance(action, (DiscoverHead, Leave)):
            raise SystemExit(f"a member gave its head up: {action}")
