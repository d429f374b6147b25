"""Helpers for scripted sequences: nodes join, send messages, and the machine returns actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from hpc_elastic.agent.policy import SILENT_END, Policy
from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Action, ClaimAttempt, SendToMember, WriteResult
from hpc_elastic.membership.decisions import History
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.judge import Judge
from hpc_elastic.membership.members import Members
from hpc_elastic.membership.messages import Assign, Beat, Ended, Failed, Finished, Join, Message, Started, Stopped
from hpc_elastic.membership.ranks import Seat
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.membership.succession import Succession
from hpc_elastic.plan.launch_plan import BackoffPlan, RestartPlan
from hpc_elastic.rundir.records import Endpoint, FailureRecord, RunResultRecord, World
from hpc_elastic.rundir.state_records import HeldState, KeptState

A = TypeVar("A")
DIGEST = "d" * 64


def a_join(
    node_id: int,
    *,
    workers: int = 2,
    problem: str | None = None,
    unhealthy: str | None = None,
    node: str | None = None,
    role: str = "default",
) -> Join:
    return Join(
        node=node or f"node{node_id}",
        node_id=node_id,
        agent=Endpoint(address=f"10.0.0.{node_id}", port=20000),
        store_port=25000 + node_id,
        workers=workers,
        role=role,
        versions={},
        problem=problem,
        unhealthy=unhealthy,
    )


def a_seat(node_id: int) -> Seat:
    join = a_join(node_id)
    return Seat(
        node=join.node,
        node_id=node_id,
        agent=join.agent,
        store_port=join.store_port,
        workers=join.workers,
        role=join.role,
    )


def a_failure(
    rank: int = 0,
    *,
    attempt: int = 1,
    exitcode: int = 1,
    failure_class: str = "exception",
    message: str = "ValueError: no",
    node: str = "node0",
    role: str = "default",
    timestamp: float = 1.0,
    is_after_stop: bool = False,
) -> FailureRecord:
    return FailureRecord(
        rank=rank,
        local_rank=rank % 2,
        role=role,
        node=node,
        attempt=attempt,
        pid=100 + rank,
        exitcode=exitcode,
        signal_name="SIGKILL" if exitcode == -9 else None,
        error_file="error.json",
        message=message,
        timestamp=timestamp,
        failure_class=failure_class,
        is_after_stop=is_after_stop,
    )


def an_assign(
    *, attempt: int = 1, nodes: int = 2, group_rank: int = 1, head: str = "node0", is_failure_ignored: bool = False
) -> Assign:
    return Assign(
        attempt=attempt,
        group_rank=group_rank,
        group_world_size=nodes,
        first_rank=2 * group_rank,
        workers=2,
        world_size=2 * nodes,
        role="default",
        first_role_rank=2 * group_rank,
        role_world_size=2 * nodes,
        master=Endpoint(address="10.0.0.0", port=25000),
        serves_store=group_rank == 0,
        is_failure_ignored=is_failure_ignored,
        world_digest=DIGEST,
        head=head,
    )


def a_restart_plan(
    max_restarts: int = 3, *, first_s: float = 0, no_progress_limit: int = 3, max_node_losses: int = 64
) -> RestartPlan:
    backoff = BackoffPlan(first_s=first_s, factor=2, max_s=60)
    return RestartPlan(
        max_restarts=max_restarts,
        backoff=backoff,
        no_progress_limit=no_progress_limit,
        max_node_losses=max_node_losses,
    )


def of_kind(actions: Sequence[Action], kind: type[A]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def sent(actions: Sequence[Action], kind: type[A]) -> dict[str, A]:
    """The messages of a kind that a head sends, by node."""
    return {send.node: send.message for send in of_kind(actions, SendToMember) if isinstance(send.message, kind)}


class HeadScript:
    """A head with the real policy, and the world around it as method calls."""

    def __init__(
        self,
        nodes: int = 2,
        *,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
        restart: RestartPlan | None = None,
        history: History | None = None,
        lease_s: float = 9,
        roles: Mapping[int, str] | None = None,
        restarts: Mapping[str, str] | None = None,
        exit_timeout_s: float | None = None,
        after_exit_timeout: Literal["fail", "succeed"] = "fail",
        role_nodes: Mapping[str, int] | None = None,
        role_max_nodes: Mapping[str, int] | None = None,
        rejoin: str = "at_restart",
        succession: Succession | None = None,
        node: str = "node0",
        join_timeout_s: float = 600,
        allocation: int = 1,
        kept: Sequence[KeptState] = (),
        may_predecessor_live: bool = False,
    ) -> None:
        self.settings = settings = HeadSettings(
            run="run",
            node=node,
            allocation=allocation,
            expected=tuple(f"node{number}" for number in range(nodes)),
            min_nodes=min_nodes or nodes,
            max_nodes=max_nodes or nodes,
            join_timeout_s=join_timeout_s,
            lease_s=lease_s,
            started="then",
            exit_timeout_s=exit_timeout_s,
            succeeds_after_exit_timeout=after_exit_timeout == "succeed",
            restarts=restarts or {},
            role_nodes=role_nodes or {},
            role_max_nodes=role_max_nodes or {},
            placed={f"node{number}": role for number, role in (roles or {}).items()},
            rejoin=rejoin,
            may_predecessor_live=may_predecessor_live,
        )
        self.policy = policy = Policy(
            restart=restart or a_restart_plan(), roles=restarts or {}, after_exit_timeout=after_exit_timeout
        )
        self.roles = roles or {}
        self.attempts: dict[int, int] = {}  # by node, what its workers belong to
        self.nodes = nodes
        self.now = 0.0
        self.lease_s = lease_s
        self.beating: set[int] = set()
        self.beats = 0
        self.heard: dict[int, int] = {}  # by node, the newest echo that came
        past = history or History()
        self.head = Head(settings, history=past, decide=policy.decide, now=self.now, succession=succession, kept=kept)

    def join(self, *node_ids: int, problem: str | None = None, unhealthy: str | None = None) -> list[Action]:
        self.beating.update(node_ids)
        joins = [a_join(number, problem=problem, unhealthy=unhealthy, role=self.role_of(number)) for number in node_ids]
        return [action for join in joins for action in self.head.joined(join, self.now)]

    def claimed(self, *, is_ours: bool = True, attempt: int | None = None) -> list[Action]:
        actions = self.head.claimed(attempt or self.head.attempt + 1, is_ours, DIGEST, self.now)
        for node, assign in sent(actions, Assign).items():
            self.attempts[int(node.removeprefix("node"))] = assign.attempt
        return actions

    def role_of(self, node_id: int) -> str:
        return self.roles.get(node_id, "default")

    def run(self) -> list[Action]:
        """Let all nodes join, and give the head its claim."""
        self.join(*range(self.nodes))
        return self.claimed()

    def say(self, node_id: int, message: Message) -> list[Action]:
        return self.head.received(f"node{node_id}", message, self.now)

    def fail(self, node_id: int, *, rank: int | None = None, attempt: int | None = None) -> list[Action]:
        attempt = attempt or self.attempts.get(node_id, self.head.attempt)
        rank = 2 * node_id if rank is None else rank
        failure = a_failure(rank, attempt=attempt, node=f"node{node_id}", role=self.role_of(node_id))
        return self.say(node_id, Failed(attempt=attempt, failure=failure))

    def report(self, node_id: int, failure: FailureRecord) -> list[Action]:
        """One of the node's workers failed, in this way."""
        return self.say(node_id, Failed(attempt=self.attempts[node_id], failure=failure))

    def finish(self, node_id: int) -> list[Action]:
        """Every worker of the node exited 0; a member tells of the first one by itself."""
        self.end(node_id)
        return self.say(node_id, Finished(attempt=self.attempts[node_id]))

    def start(self, node_id: int) -> list[Action]:
        return self.say(node_id, Started(attempt=self.attempts[node_id]))

    def end(self, node_id: int) -> list[Action]:
        return self.say(node_id, Ended(attempt=self.attempts[node_id]))

    def stopped(
        self,
        node_id: int,
        *failures: FailureRecord,
        unkillable: tuple[int, ...] = (),
        succeeded: str = "",
        step: int | None = None,
        held: tuple[HeldState, ...] = (),
    ) -> list[Action]:
        message = Stopped(
            attempt=self.attempts[node_id],
            failures=failures,
            unkillable=unkillable,
            store_port=26000 + node_id,
            succeeded=succeeded,
            step=step,
            held=held,
        )
        return self.say(node_id, message)

    def lose(self, node_id: int, *, is_gone: bool = True) -> list[Action]:
        self.beating.discard(node_id)
        return self.head.lost(f"node{node_id}", "the connection closed", self.now, is_gone=is_gone)

    def pass_time(self, seconds: float) -> list[Action]:
        """Tick the head when it is due, as an agent does; the nodes in `beating` send beats."""
        actions: list[Action] = []
        end, at_once = self.now + seconds, 0
        while (at := self.head.next_tick()) <= end:
            at_once = at_once + 1 if at == self.now else 0
            assert at >= self.now, "a timer in the past would spin"
            assert at_once < 100, "a timer that is due again and again would spin"
            self.now = at
            for node_id in sorted(self.beating):
                self.beats += 1
                self.say(node_id, Beat(number=self.beats, heard=self.heard.get(node_id, 0)))
                self.heard[node_id] = self.beats
            actions += self.head.tick(self.now)
        self.now = end
        return actions


class HeadParts:
    """What a head's collaborators work with, with the real policy and no head."""

    def __init__(self, nodes: int = 2, *, silent_ends: int = 0, **more: Any) -> None:
        script = HeadScript(nodes, **more)
        self.settings = replace(script.settings, has_silent_ends=silent_ends > 0, goes_on_after="it ended silently")
        self.members = Members(self.settings, node_losses=0, now=0.0)
        history = History(same_failures=silent_ends, failure_signature=SILENT_END if silent_ends else None)
        self.judge = Judge(self.settings, history, script.policy.decide, self.members)

    def join(self, *joins: Join, now: float = 0.0) -> None:
        for join in joins:
            self.members.admit(join, now, is_late=False, attempt=0)

    def run(self, nodes: int, now: float = 0.0) -> World:
        """An attempt of these many nodes is at work."""
        self.join(*map(a_join, range(nodes)), now=now)
        _, world = self.judge.prepare_attempt()
        self.judge.attempt_claimed(world.attempt)
        self.judge.verdict.attempt_opened()
        self.members.gathering.has_world = True
        self.members.begin(now)
        return world


def the_claim(actions: Sequence[Action]) -> ClaimAttempt:
    (claim,) = of_kind(actions, ClaimAttempt)
    return claim


def the_result(actions: Sequence[Action]) -> RunResultRecord:
    (write,) = of_kind(actions, WriteResult)
    return write.result


def the_cause(actions: Sequence[Action]) -> tuple[str, ExitCode]:
    """Return the reason and exit code of the result in the actions."""
    result = the_result(actions)
    return result.reason, ExitCode(result.exit_code)
