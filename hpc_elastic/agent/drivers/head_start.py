"""Creates a head on this node, from the plan and the run's latest claim."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from hpc_elastic.agent.drivers.coordinator import Coordinator
from hpc_elastic.agent.drivers.head_outputs import HeadOutputs
from hpc_elastic.agent.drivers.job_clock import TimeLeft
from hpc_elastic.agent.policy import Policy, charge_silent_ends
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.telemetry import Telemetry
from hpc_elastic.agent.rendezvous.findings import Findings
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.errors import MissingNode, RunDirectoryError
from hpc_elastic.hostlist import expand_hostlist
from hpc_elastic.membership.decisions import Decide, History, SilentEnds
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.messages import Join
from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.membership.succession import LostHead, Succession
from hpc_elastic.membership.timing import AGENT, Profile
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.records import AttemptClaim, Request
from hpc_elastic.rundir.state_records import KeptState
from hpc_elastic.scheduler.allocation import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The run's history that a new head continues.

    `started`: when the run began. `opened`: the latest attempt of this start of the job.
    `may_predecessor_live`: agents of an earlier start of the job may still be at work. `why_before`: why that start
    ended, for people. `kept`: the training states that were written after the latest attempt. `has_silent_ends`: the
    start before this one ended without a word, which the history has counted. `drains`: the requests of people to use
    nodes no more, which hold for every head.
    """

    history: History
    started: str
    opened: AttemptClaim | None
    may_predecessor_live: bool
    why_before: str = ""
    kept: tuple[KeptState, ...] = ()
    has_silent_ends: bool = False
    drains: tuple[Request, ...] = ()

    def is_followed_by(self, succession: Succession | None) -> bool:
        """Returns whether this head may still start: its latest attempt is the one that `succession` goes on from.

        A first head, which has no succession, may start only if this start of the job has opened no attempt.
        """
        if succession is None:
            return self.opened is None
        return self.history.attempts == succession.world.attempt


class HeadStart:
    """Creates the heads of this agent, one at a time.

    Args:
        plan: the launch plan.
        place: this node's place.
        journal: the run directory.
        disk: the thread for access to the run directory.
        telemetry: is told what the head does.
        profile: how fast the fences of the run's agents are.
        decide: the restart policy, if not the plan's.
        time_left: what this agent knows about the end of its job; None: nobody sees to the time.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        place: Allocation,
        *,
        journal: Journal,
        disk: BackgroundThread,
        telemetry: Telemetry,
        profile: Profile = AGENT,
        decide: Decide | None = None,
        time_left: TimeLeft | None = None,
    ) -> None:
        self._plan = plan
        self._place = place
        self._journal = journal
        self._disk = disk
        self._telemetry = telemetry
        self._profile = profile
        self._decide = decide
        self._time_left = time_left

    async def read(self) -> Past:
        """Reads the history that a new head continues."""
        return await self._disk.call(self._read)

    def _read(self) -> Past:
        journal = self._journal
        history = journal.history()
        # In this order: an attempt that the history knows is among the records too, if it is of this start.
        opened = journal.read_records(needs_world=False).claim
        silent_ends = journal.next_start.silent_ends() if opened is None else SilentEnds()
        with contextlib.suppress(RunDirectoryError):  # the head's own looks try again
            journal.requests()
        return Past(
            history=charge_silent_ends(history, silent_ends),
            started=journal.first_start(),
            opened=opened,
            may_predecessor_live=history.attempts > 0 and journal.may_predecessor_live(),
            why_before=journal.next_start.why_before(),
            kept=journal.kept_states(history.attempts, is_over=opened is None),
            has_silent_ends=silent_ends.are_there,
            drains=tuple(request for request in journal.asked if request.kind == "drain"),
        )

    def make(
        self,
        own: Join,
        past: Past,
        succession: Succession | None,
        outputs: HeadOutputs,
        heard: Callable[[], NoticeGiven | None] = lambda: None,
        *,
        may_yield: bool,
        relieved: MissingNode | None = None,
        lost: LostHead | None = None,
    ) -> Coordinator:
        """Creates a head that gathers nodes for the next attempt.

        Args:
            own: this node's join message.
            past: the run's history, which the head continues.
            succession: the lost head whose place it takes, None for a first head.
            outputs: the callbacks to the agent around it.
            heard: returns the notice that this node's member has from an earlier head, with the seconds that are left.
            may_yield: whether it may step down for another head of this start before the first attempt.
            relieved: the first head, in whose place it is, for most nodes cannot reach that one.
            lost: the head in whose place it is before the first attempt, if this agent has lost it.
        """
        plan, place = self._plan, self._place
        settings = self._settings(own, past, is_first=succession is None)
        after = plan.elastic.after_exit_timeout
        policy = Policy(
            restart=plan.restart,
            roles=settings.restarts,
            after_exit_timeout=after,
            run=plan.run,
            silent_ends_limit=max(plan.restart.no_progress_limit, plan.requeue.max),
        )
        decide = self._decide or policy.decide
        now = asyncio.get_running_loop().time()
        head = Head(settings, history=past.history, decide=decide, now=now, succession=succession, kept=past.kept)
        if relieved is not None:
            head.gathering.relieves(relieved)
        elif succession is None:
            head.gathering.follows(self._journal.heads_before, lost, now)
        findings = Findings(plan, place)
        return Coordinator(
            head,
            node=place.node,
            journal=self._journal,
            disk=self._disk,
            telemetry=self._telemetry,
            outputs=outputs,
            diagnose=lambda nodes: findings.read(nodes, own.agent),
            time_left=self._time_left,
            heard=heard,
            drains=past.drains,
            may_yield=may_yield,
        )

    def _settings(self, own: Join, past: Past, *, is_first: bool) -> HeadSettings:
        plan, place = self._plan, self._place
        return HeadSettings(
            run=plan.run,
            node=place.node,
            allocation=self._journal.allocation,
            expected=place.nodes,
            min_nodes=plan.nodes.min,  # a job of fewer nodes was made smaller: the head ends the run
            max_nodes=plan.nodes.max,
            join_timeout_s=plan.elastic.join_timeout_s,
            lease_s=plan.elastic.lease_s,
            started=past.started,
            exit_timeout_s=plan.elastic.exit_timeout_s,
            succeeds_after_exit_timeout=plan.elastic.after_exit_timeout == "succeed",
            restarts={role.name: role.restart for role in plan.roles},
            versions=own.versions,
            role_nodes={role.name: role.nodes.min for role in plan.roles},
            role_max_nodes={role.name: role.nodes.max for role in plan.roles},
            placed=plan.placed_on(place.nodes),
            rejoin=plan.elastic.rejoin,
            flush_after=plan.state.flush,
            domains=_domains(plan, place),
            goes_on_after=past.why_before,
            has_silent_ends=past.has_silent_ends,
            may_predecessor_live=is_first and past.opened is None and past.may_predecessor_live,
            profile=self._profile,
        )


def _domains(plan: LaunchPlan, place: Allocation) -> dict[str, str]:
    """Return which of the site's failure domains each node is in, for those that are in one."""
    if not plan.state.replicas:
        return {}
    named = {node: domain for domain in plan.state.domains for node in expand_hostlist(domain)}
    return {node: named[node] for node in place.nodes if node in named}
