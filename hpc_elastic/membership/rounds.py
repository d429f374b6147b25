"""The values that open and end a round: the claim and roster, each node's assignment, the result, the events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.failures.describe import describe_failure
from hpc_elastic.failures.root_cause import has_waited
from hpc_elastic.hostlist import name_some
from hpc_elastic.membership.actions import Action, Log, Note, SendToMember
from hpc_elastic.membership.decisions import Finish, History, Ignore, RestartWorkers, Trigger
from hpc_elastic.membership.held_states import copy_targets, state_for
from hpc_elastic.membership.messages import Assign, Stop
from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.membership.ranks import NodeLimits, Seat, assign_worker_ranks, find_swaps, restart_roles
from hpc_elastic.membership.roster import RosterEntry
from hpc_elastic.membership.tally import Tally
from hpc_elastic.membership.timing import AGENT, MOST_SPARES, Profile, Timing
from hpc_elastic.rank_set import name_ranks
from hpc_elastic.rundir.records import (
    AttemptClaim,
    Charged,
    Endpoint,
    FailureRecord,
    RootCause,
    RunResultRecord,
    RunState,
    World,
    WorldSpare,
)
from hpc_elastic.rundir.state_records import ChosenState

NOBODY: Mapping[str, Sequence[str]] = MappingProxyType({})
NO_KEEPERS: Mapping[str, Endpoint] = MappingProxyType({})
NO_DOMAINS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSettings:
    """The values that stay the same while an agent is head.

    `expected` is in the order of the node ids; `restarts` has the restart policy of each role by its
    name, as `plan.launch_plan.RolePlan` has it. `may_predecessor_live`: an earlier start of the job opened attempts,
    and some of its agents may still be at work, on nodes that the scheduler has given up. `has_silent_ends`: the start
    before this one ended without a word, which the history has counted.
    """

    run: str
    node: str
    allocation: int
    expected: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    join_timeout_s: float
    lease_s: float
    started: str
    exit_timeout_s: float | None = None
    succeeds_after_exit_timeout: bool = False
    rejoin: str = "at_restart"  # or immediately
    restarts: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)  # on the head's node
    role_nodes: Mapping[str, int] = field(default_factory=dict)  # the least number of nodes of each role
    role_max_nodes: Mapping[str, int] = field(default_factory=dict)  # the greatest number of nodes of each role
    placed: Mapping[str, str] = field(default_factory=dict)  # the role of each expected node
    may_predecessor_live: bool = False
    flush_after: tuple[str, ...] = ("requeue", "failure", "cancel")  # which ends training states are written
    domains: Mapping[str, str] = field(default_factory=dict)  # the failure domain of each node, where it is known
    goes_on_after: str = ""  # why the start of the job before this one ended, for people
    has_silent_ends: bool = False
    profile: Profile = AGENT
    timing: Timing = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "timing", Timing(lease_s=self.lease_s, profile=self.profile))


def open_attempt(
    settings: HeadSettings,
    history: History,
    seats: Sequence[Seat],
    reason: str,
    before: World | None = None,
    roles: frozenset[str] | None = None,
    root_cause: RootCause | None = None,
) -> tuple[AttemptClaim, World]:
    """Return the claim of the next attempt, with its time left empty, and its world.

    Args:
        settings: the head's settings.
        history: the run so far.
        seats: the nodes that are here.
        reason: why the attempt is opened.
        before: the world of the attempt before, in which nodes that are still here keep their places; None
            for the first of an allocation.
        roles: the roles that start in it while the others run on; None: every worker starts.
        root_cause: why the attempt before ended; None for the first one, and where no failure ended it.
    """
    attempt = history.attempts + 1
    if before is not None and roles is not None and roles < {role.role for role in before.roles}:
        world = restart_roles(before, roles, seats)
    else:
        world = assign_worker_ranks(
            seats,
            run=settings.run,
            attempt=attempt,
            allocation=settings.allocation,
            head=settings.node,
            restarts=settings.restarts,
            before=before,
            limits=NodeLimits(
                all_nodes=settings.max_nodes, of_role=settings.role_max_nodes, least_of_role=settings.role_nodes
            ),
        )
    claim = AttemptClaim(
        run=settings.run,
        attempt=attempt,
        allocation=settings.allocation,
        predecessor=history.attempts or None,
        head=settings.node,
        members=tuple(node.node for node in world.nodes),
        roles=starting_roles(world),
        reason=reason,
        spend=history.spend,
        failure_signature=history.failure_signature,
        same_failures=history.same_failures,
        progress=history.progress,
        step=history.step,
        set_aside=history.set_aside,
        lost_nodes=history.lost_nodes,
        root_cause=root_cause,
        time="",
    )
    return claim, world


def spares_beside(world: World, seats: Sequence[Seat]) -> tuple[WorldSpare, ...]:
    """Return the nodes that are here and have no part in the world, in the order of `seats`, `MOST_SPARES` at most."""
    names = {node.node for node in world.nodes}
    spares = [seat for seat in seats if seat.node not in names][:MOST_SPARES]
    return tuple(WorldSpare(node=seat.node, node_id=seat.node_id, agent=seat.agent) for seat in spares)


def history_after(claim: AttemptClaim, charged: Charged | None = None) -> History:
    """Return the history of the run up to and including the attempt of this claim, from which a head goes on.

    Args:
        claim: the latest one.
        charged: what a head had charged when its allocation ended; a claim of a later attempt has that already.
    """
    last = charged if charged is not None and charged.attempt == claim.attempt else claim
    return History(
        attempts=last.attempt,
        spend=last.spend,
        failure_signature=last.failure_signature,
        same_failures=last.same_failures,
        progress=last.progress,
        step=last.step,
        set_aside=last.set_aside,
        lost_nodes=last.lost_nodes,
        states=claim.states,
    )


def charged_in(history: History) -> Charged:
    """Return what a head has charged, for the next start of the job if no claim of this one will carry it."""
    return Charged(
        attempt=history.attempts,
        spend=history.spend,
        failure_signature=history.failure_signature,
        same_failures=history.same_failures,
        progress=history.progress,
        step=history.step,
        set_aside=history.set_aside,
        lost_nodes=history.lost_nodes,
    )


def starting_roles(world: World) -> tuple[str, ...]:
    """Return the roles whose workers start in the attempt of this world."""
    return tuple(role.role for role in world.roles if role.attempt == world.attempt)


def stops(
    members: Iterable[RosterEntry], decision: RestartWorkers | Finish, observed: FailureRecord | None = None
) -> Iterator[SendToMember]:
    """Yield the Stop of a decision for each of these members: the same message for all workers of one attempt.

    `observed` is the failure for which they are stopped, which may not be the cause.
    """
    reason = decision.cause if isinstance(decision, Finish) else decision.reason
    if observed is not None:
        reason = f"first observed: {describe_failure(observed)}"
    is_term_coming = decision.reason == Trigger.TERMINATED.value
    # Ranks hang, and where those are that have not failed says why.
    is_about_hang = observed is not None and (
        has_waited(observed) or observed.failure_class == FailureClass.STALLED.value
    )
    words: dict[int, Stop] = {}
    for member in members:
        attempt = member.attempt
        if attempt not in words:
            words[attempt] = Stop(
                attempt=attempt,
                manner=decision.manner,
                reason=reason,
                is_term_coming=is_term_coming,
                takes_stacks=is_about_hang,
            )
        yield SendToMember(node=member.node, message=words[attempt])


def loss_note(node: str, why: str, attempt: int) -> Note:
    """Return the event of a lost node."""
    return Note(name="node.lost", message=f"{node}: {why}", attempt=attempt, metadata={"node": node})


def opening_notes(world: World, because: str, before: World | None = None, states: Sequence[str] = ()) -> list[Action]:
    """Return the log lines and events of an attempt that opens.

    `before` is the world before it, if there was one; `states` are the lines about training states in memory.
    """
    starting = starting_roles(world)
    nodes = [node.node for node in world.nodes if node.role in starting]
    ranks = sum(role.size for role in world.roles if role.role in starting)
    roles = "" if len(starting) == len(world.roles) else f" of {' and '.join(starting)}"
    counts = f"{_count(ranks, 'rank')}{roles} on {_count(len(nodes), 'node')}"
    text = f"attempt {world.attempt}: {counts} ({because})"
    metadata = {"nodes": nodes, "roles": list(starting)}
    note = Note(name="attempt.opened", message=text, attempt=world.attempt, metadata=metadata)
    succeeded = _succeeded(world, before) if before is not None and before.head != world.head else []
    said = [_about_state(world, line) for line in states]
    lines = [Log(text=event.message) for event in said]
    return [
        *succeeded,
        Log(text=text),
        note,
        *lines,
        *said,
        *(_swap(world, *swap) for swap in find_swaps(before, world)),
    ]


def _about_state(world: World, line: str) -> Note:
    return Note(name="state.chosen", message=f"attempt {world.attempt}: {line}", attempt=world.attempt)


def _succeeded(world: World, before: World) -> list[Action]:
    text = f"{world.head} is head now, in the place of {before.head}"
    metadata = {"head": world.head, "instead_of": before.head}
    return [Log(text=text), Note(name="head.succeeded", message=text, attempt=world.attempt, metadata=metadata)]


def _swap(world: World, node: str, instead_of: str) -> Note:
    text = f"{node} takes the place of {instead_of}"
    metadata = {"node": node, "instead_of": instead_of}
    return Note(name="spare.swapped_in", message=text, attempt=world.attempt, metadata=metadata)


def announcement(decision: RestartWorkers | Finish | Ignore, attempt: int, *, is_opening: bool = False) -> list[Action]:
    """Return the log lines and the event of a decision; the end of the run is logged once its result is written.

    `is_opening`: the attempt is still being claimed, so no rank of it has started.
    """
    if isinstance(decision, Finish):
        return [Note(name="run.ending", message=decision.cause, attempt=attempt)]
    if isinstance(decision, Ignore):
        text = f"attempt {attempt}: {decision.reason}; ignored, as its role says"
        return [Log(text=text), Note(name="failure.ignored", message=decision.reason, attempt=attempt)]
    whose = "all ranks" if decision.roles is None else f"the ranks of {' and '.join(sorted(decision.roles))}"
    text = f"attempt {attempt}: {decision.reason}; restarting {whose}"
    if is_opening:
        which = "the first attempt" if attempt == 1 else f"attempt {attempt} starts"
        text = f"before {which}: {decision.reason}; gathering the nodes again"
    return [Log(text=text), Note(name="attempt.failed", message=decision.reason, attempt=attempt)]


def observation_note(failure: FailureRecord, attempt: int) -> list[Action]:
    """Return the log line and the event of the failure for which a stop begins, which may not be the cause."""
    what = describe_failure(failure)
    text = f"attempt {attempt}: first observed: {what}; the cause is named when every node has stopped its workers"
    note = Note(name="failure.observed", message=what, attempt=attempt, metadata={"rank": failure.rank})
    return [Log(text=text, level="debug"), note]


def assignments(
    world: World,
    world_digest: str,
    restarts: int = 0,
    notice: NoticeGiven | None = None,
    states: Sequence[ChosenState] = (),
    sources: Mapping[str, Sequence[str]] = NOBODY,
    keepers: Mapping[str, Endpoint] = NO_KEEPERS,
    domains: Mapping[str, str] = NO_DOMAINS,
) -> dict[str, Assign]:
    """Return each starting node's own part of the world by node, in the order of the group ranks.

    Args:
        world: the world.
        world_digest: the digest of its record.
        restarts: how many restarts the run has used.
        notice: the one that stands.
        states: the training states in memory with which roles begin.
        sources: the nodes from which each node gets that state which has not got it.
        keepers: where nodes take and give copies of states.
        domains: what fails as a whole and has the node in it, by node.
    """
    targets = copy_targets(world, keepers, domains)
    asked = {holder for holders in sources.values() for holder in holders}
    roles = {role.role: role for role in world.roles}
    parts = {}
    for group_rank, node in enumerate(world.nodes):
        role = roles[node.role]
        if role.attempt != world.attempt:
            continue
        parts[node.node] = Assign(
            attempt=world.attempt,
            group_rank=group_rank,
            group_world_size=len(world.nodes),
            first_rank=node.first_rank,
            workers=node.workers,
            world_size=len(world.ranks),
            role=role.role,
            first_role_rank=world.ranks[node.first_rank].role_rank,
            role_world_size=role.size,
            master=role.master,
            serves_store=role.master_node == node.node,
            is_failure_ignored=role.restart == "ignore",
            world_digest=world_digest,
            head=world.head,
            restarts=restarts,
            notice=notice,
            state=state_for(states, role.role),
            state_from=tuple(keepers[holder] for holder in sources.get(node.node, ()) if holder in keepers),
            copies_to=keepers[targets[node.node]] if node.node in targets else None,
            is_source=node.node in asked,
        )
    return parts


def run_result(
    settings: HeadSettings,
    history: History,
    decision: Finish,
    world: World | None,
    tally: Tally,
    running: Sequence[RosterEntry] = (),
    root_cause: RootCause | None = None,
) -> RunResultRecord:
    """Return the run's result, with its end time left empty; a success names no failures, as in torch's RunResult.

    `running` are the members that still have workers; in a success, those of roles whose failures are ignored.
    """
    is_success = decision.state is RunState.SUCCEEDED
    return RunResultRecord(
        run=settings.run,
        state=decision.state,
        exit_code=int(decision.exit_code),
        reason=decision.reason,
        cause=decision.cause + _but_for(tally, running) if is_success else decision.cause,
        attempts=history.attempts,
        restarts=history.spend.restarts,
        failures={} if is_success else dict(sorted(tally.failures.items(), key=lambda item: int(item[0]))),
        return_values={},
        nodes=tuple(node.node for node in world.nodes) if world else settings.expected,
        started=settings.started,
        ended="",
        written_by=settings.node,
        root_cause=root_cause if decision.state is RunState.FAILED else None,
    )


def _but_for(tally: Tally, running: Sequence[RosterEntry]) -> str:
    """Return the words for what a success leaves out: ranks that have not exited 0 in roles that are ignored."""
    left_out = [f"{_count(len(tally.failures), 'rank')} that failed"] if tally.failures else []
    if tally.again:
        left_out.append(f"{name_ranks(tally.again)} that exited 75 after the notice")
    if running:
        left_out.append(f"those that still ran on {name_some([member.node for member in running])}")
    return f", but for {' and '.join(left_out)}, which is ignored" if left_out else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
