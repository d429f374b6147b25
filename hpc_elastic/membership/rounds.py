"""What opens and ends a round, as values: the claim and roster, each node's part, the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_elastic.membership.actions import Action, Note, Say
from hpc_elastic.membership.decisions import Decision, Finish, History
from hpc_elastic.membership.messages import Assign
from hpc_elastic.membership.ranks import Seat, assign_ranks, role_sizes
from hpc_elastic.rundir.records import AttemptClaim, FailureRecord, RunResult, RunState, World


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSettings:
    """What does not change while an agent is head. `expected` is in the order of the node ids."""

    run: str
    node: str
    allocation: int
    expected: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    join_timeout_s: float
    lease_s: float
    started: str


def open_attempt(
    settings: HeadSettings, history: History, seats: Sequence[Seat], reason: str
) -> tuple[AttemptClaim, World]:
    """The claim of the next attempt, its time left empty, and its roster."""
    attempt = history.attempts + 1
    world = assign_ranks(seats, run=settings.run, attempt=attempt, allocation=settings.allocation, head=settings.node)
    claim = AttemptClaim(
        run=settings.run,
        attempt=attempt,
        allocation=settings.allocation,
        predecessor=history.attempts or None,
        head=settings.node,
        members=tuple(node.node for node in world.nodes),
        reason=reason,
        spend=history.spend,
        failure_signature=history.failure_signature,
        same_failures=history.same_failures,
        progress=history.progress,
        time="",
    )
    return claim, world


def history_after(claim: AttemptClaim) -> History:
    """What a head goes on from: the run up to and with the attempt of this claim."""
    return History(
        attempts=claim.attempt,
        spend=claim.spend,
        failure_signature=claim.failure_signature,
        same_failures=claim.same_failures,
        progress=claim.progress,
    )


def opening(world: World, because: str) -> list[Action]:
    """What is said when an attempt opens."""
    nodes = [node.node for node in world.nodes]
    text = f"attempt {world.attempt}: {len(world.ranks)} ranks on {len(nodes)} nodes ({because})"
    return [Say(text=text), Note(name="attempt.opened", message=text, attempt=world.attempt, metadata={"nodes": nodes})]


def announcement(decision: Decision, attempt: int) -> list[Action]:
    """What is said when an attempt is to be stopped; the run's end is told once its result is written."""
    if isinstance(decision, Finish):
        return [Note(name="run.ending", message=decision.cause, attempt=attempt)]
    text = f"attempt {attempt}: {decision.reason}; restarting all ranks"
    return [Say(text=text), Note(name="attempt.failed", message=decision.reason, attempt=attempt)]


def assignments(world: World, world_digest: str) -> dict[str, Assign]:
    """Each node's own part of the world by node, in the order of the group ranks."""
    sizes = role_sizes(world)
    parts = {}
    for group_rank, node in enumerate(world.nodes):
        first = world.ranks[node.first_rank]
        parts[node.node] = Assign(
            attempt=world.attempt,
            group_rank=group_rank,
            group_world_size=len(world.nodes),
            first_rank=node.first_rank,
            workers=node.workers,
            world_size=len(world.ranks),
            first_role_rank=first.role_rank,
            role_world_size=sizes[first.role],
            master=world.master,
            world_digest=world_digest,
            head=world.head,
        )
    return parts


def run_result(
    settings: HeadSettings,
    history: History,
    decision: Finish,
    *,
    world: World | None,
    failures: Mapping[str, FailureRecord],
    return_values: Mapping[str, Any],
) -> RunResult:
    """The run's result, its end left empty; all or nothing, as torch's RunResult."""
    is_success = decision.state is RunState.SUCCEEDED
    return RunResult(
        run=settings.run,
        state=decision.state,
        exit_code=int(decision.exit_code),
        reason=decision.reason,
        cause=decision.cause,
        attempts=history.attempts,
        restarts=history.spend.restarts,
        failures={} if is_success else dict(sorted(failures.items(), key=lambda item: int(item[0]))),
        return_values=dict(return_values) if is_success else {},
        nodes=tuple(node.node for node in world.nodes) if world else settings.expected,
        started=settings.started,
        ended="",
        written_by=settings.node,
    )
