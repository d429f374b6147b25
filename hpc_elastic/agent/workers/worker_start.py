"""Chooses how this node's workers are started: forked if there is a usable fork server, else spawned; logs it once."""

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

_FORKS = "forks"  # the subject of a line that is logged once, even if a later server reports other numbers


class WorkerStart:
    """Starts the fork server, if workers of this node could be its forks, and chooses fork or spawn for each attempt.

    Args:
        plan: the launch plan.
        allocation: this node's place.
        environ: the agent's environment.
        thread: the thread in which processes are started.
        deadline: the time until which workers may run, which a new worker checks before it runs the user's code.
        say: takes a line for the agent's log.
        threads: the number of threads of each worker, None if that is torch's own.
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
        threads: int | None = None,
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
            node = node_environment(environ, plan, allocation, threads=threads)
        except AllocationError:  # reported to the head elsewhere; keeps this node from taking part
            return
        self._why_no_server = why_no_server(plan.start, role.entrypoint.kind, node, is_bound=plan.binding != "none")
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
        """Start the fork server, if there is to be one, and return at once; else log why workers are spawned."""
        if self._server is not None:
            await self._server.start()
        elif self._why_no_server is not None:
            self._say_once(describe_spawns(self._why_no_server))

    def pids(self) -> list[int]:
        """Return the process id of the fork server, which no stop may reach; must be called in the thread."""
        return self._server.pids() if self._server is not None else []

    async def choose(self, orders: Sequence[WorkerOrder]) -> Starter:
        """Return the starter for these workers, which is the same for all; waits until the fork server is ready.

        Raises:
            StartFailedError: the workers cannot be forks, and `start: fork` says that they must be.
        """
        server, why = self._server, self._why_no_server
        if server is not None and orders[0].kind == "command":  # of another role, whose place this spare has
            server, why = None, "the entrypoint is a command"
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
        """Wait until it is known whether workers can be forks."""
        if self._server is not None:
            await self._server.report()

    async def forking_server(self) -> tuple[ForkServerLink | None, str | None]:
        """Wait for the fork server; return it if it may fork, else None, and why it has no torch, if so."""
        if self._server is None:
            return None, None
        report = await self._server.report()
        return (self._server if report.unsafe is None else None), report.no_torch

    async def close(self) -> None:
        """End the fork server; workers go on running."""
        if self._server is not None:
            await self._server.close()

    def _heard(self, report: ServerReport) -> None:
        for name, why in report.failed_preloads:
            self._say_once(f"preload: {name} cannot be imported ({why}); workers that import it will fail", "warning")
        if report.unsafe is None:
            self._say_once(describe_forks(report), about=_FORKS)
        elif self._server is not None:  # an unusable server would only take memory
            self._say_once(describe_spawns(report.unsafe))
            self._tasks.run(self._server.close())

    def _say_once(self, text: str, level: Level = "info", *, about: str | None = None) -> None:
        if (about or text) not in self._said:
            self._said.add(about or text)
            self._say(text, level)
