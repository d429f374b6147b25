"""How this node's workers are started: as forks while there is a server that can, else spawned, and said once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpc_elastic.agent.node.node_environment import node_environment
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.agent.workers.fork_server_link import ForkServerLink
from hpc_elastic.agent.workers.spawn import Spawner, Starter, StartFailedError, WorkerOrder
from hpc_elastic.agent.workers.start_choice import (
    ServerReport,
    describe_forks,
    describe_refusal,
    describe_spawns,
    why_no_fork,
    why_no_server,
)
from hpc_elastic.deadline import Deadline
from hpc_elastic.errors import AllocationError
from hpc_elastic.membership.actions import Level
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.scheduler.allocation import Allocation

_FORKS = "forks"  # said once, whatever a later server needs


class WorkerStart:
    """Starts the fork server, if workers of this node could be its forks, and chooses for each attempt.

    Args:
        plan: the launch plan.
        allocation: this node's place.
        environ: the agent's environment.
        thread: where processes are started.
        deadline: what a new worker looks at before it becomes the user's.
        say: takes a line for the agent's log.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        allocation: Allocation,
        environ: Mapping[str, str],
        *,
        thread: BackgroundThread,
        deadline: Deadline,
        say: Callable[[str, Level], None],
    ) -> None:
        self._plan = plan
        self._say = say
        self._said: set[str] = set()
        self._spawner = Spawner(plan.package_dir, deadline)
        self._server: ForkServerLink | None = None
        self._why_no_server: str | None = None
        self._tasks = Tasks()
        role = plan.role_on(allocation.node_id, len(allocation.nodes))
        try:
            node = node_environment(environ, plan, allocation)
        except AllocationError:  # which keeps this node from taking part, and is told to the head
            return
        self._why_no_server = why_no_server(plan.start, role.entrypoint.kind, node)
        if self._why_no_server is None:
            self._server = ForkServerLink(
                plan.package_dir,
                preload=plan.preload,
                node=node,
                deadline=deadline,
                thread=thread,
                say=lambda text: say(text, "info"),
                on_report=self._heard,
            )

    async def start(self) -> None:
        """Starts what takes long; returns at once."""
        if self._server is not None:
            await self._server.start()
        elif self._why_no_server is not None:
            self._say_once(describe_spawns(self._why_no_server))

    def pids(self) -> list[int]:
        """The server's process id, which no stop may reach; to be asked in the thread."""
        return self._server.pids() if self._server is not None else []

    async def choose(self, orders: Sequence[WorkerOrder]) -> Starter:
        """How these workers are started, all of them in the same way; waits until a server is ready.

        Raises:
            StartFailedError: they cannot be forks, and `start: fork` says they must.
        """
        server, why = self._server, self._why_no_server
        if server is not None:
            report = await server.report()
            why = why_no_fork(report, server.variables, [order.environment for order in orders])
            if why is None:
                return server
        if self._plan.start == "fork" and why is not None:
            raise StartFailedError(orders[0], describe_refusal(why), is_passing=False)
        if why is not None:
            self._say_once(describe_spawns(why))
        return self._spawner

    async def ready(self) -> None:
        """Waits until it is known whether workers can be forks."""
        if self._server is not None:
            await self._server.report()

    async def forking_server(self) -> tuple[ForkServerLink | None, str | None]:
        """The server, once it is ready, if it may fork; and why it has no torch, if so."""
        if self._server is None:
            return None, None
        report = await self._server.report()
        return (self._server if report.unsafe is None else None), report.no_torch

    async def close(self) -> None:
        """Ends the server; workers live on."""
        if self._server is not None:
            await self._server.close()

    def _heard(self, report: ServerReport) -> None:
        for name, why in report.failed_preloads:
            self._say_once(f"preload: {name} cannot be imported ({why}); workers that import it will fail", "warning")
        if report.unsafe is None:
            self._say_once(describe_forks(report), about=_FORKS)
        elif self._server is not None:  # it would only take memory
            self._say_once(describe_spawns(report.unsafe))
            self._tasks.run(self._server.close())

    def _say_once(self, text: str, level: Level = "info", *, about: str | None = None) -> None:
        if (about or text) not in self._said:
            self._said.add(about or text)
            self._say(text, level)
