"""The messages between agents, and their encoding as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from hpc_elastic.codec import DecodeError, Json, from_json, to_json
from hpc_elastic.membership.notices import NoticeCounts, NoticeGiven
from hpc_elastic.rundir.records import Candidate, Endpoint, FailureRecord
from hpc_elastic.rundir.state_records import Flush, HeldState, KeptRecord, StateVersion


class StopManner(str, Enum):
    """How workers are stopped: the time they get between TERM and KILL."""

    RESTART = "restart"  # restart_grace: a peer failed, a checkpoint could not be finished anyway
    GRACE = "grace"  # grace: the run ends, there is time to save
    LOSS = "loss"  # none, but a rank that saves has grace: an agent is dead, and nobody can go on without this head
    FENCE = "fence"  # none: KILL at once, this node may no longer be in the world

    @property
    def hardness(self) -> int:
        """How hard it is: a harder stop takes effect during a softer one."""
        return {StopManner.LOSS: 1, StopManner.FENCE: 2}.get(self, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Member to head, the first message: ask to join. `problem` says why this node cannot take part, if so.

    `unhealthy` says what this node's health checks found, if anything: it could be head, but is to have no workers.
    `can_end_job`: this agent can end the Slurm job; `is_launch_host`: srun runs on this node. `launch_node`: the node
    on which it runs, if this agent has found out that it is another one of the step.
    `number`: how often this agent has asked to join; an older Join may arrive after a newer one, on another connection.
    `held`: the training states in the memory of this node, its own and copies of other nodes'. `keeper_port`: on which
    other nodes can fetch them, and send theirs; 0: they cannot. `switch`: what fails with this node, if copies are to
    go to the node of another one.
    `gpus`: how many GPUs its workers see, None if nothing tells; `remarks`: what is odd about this node, for people.
    `clock_ns`: this node's clock as the message left, in nanoseconds since 1970; 0 if it is not told. Only what is told
    to people depends on it.
    """

    KIND: ClassVar[str] = "join"
    node: str
    node_id: int
    agent: Endpoint
    store_port: int
    workers: int
    role: str
    versions: Mapping[str, str]
    problem: str | None = None
    can_end_job: bool = False
    is_launch_host: bool = False
    launch_node: str = ""
    number: int = 0
    unhealthy: str | None = None
    clock_ns: int = 0
    held: tuple[HeldState, ...] = ()
    gpus: int | None = None
    remarks: tuple[str, ...] = ()
    keeper_port: int = 0
    switch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Head to member: the member has joined this allocation, with this head.

    `is_late`: a world is at work without the member; `gathers`: the head has not opened an attempt yet, and
    another head opened one before.
    """

    KIND: ClassVar[str] = "welcome"
    allocation: int
    head: str
    is_late: bool = False
    gathers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Head to an agent that asked to join: it cannot, and why."""

    KIND: ClassVar[str] = "refused"
    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Agent that is no head to an agent that asked to join: the address of the head that the sender follows.

    That head may be one that only gathers. The sender closes the connection afterwards.
    """

    KIND: ClassVar[str] = "elsewhere"
    node: str
    agent: Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    """Head to each node that has no part in the world: where the agents of these nodes listen, the first 64 of them.

    They need each other when the head and all members of its world are lost, and the world's record names only those
    that had joined before its attempt.
    """

    KIND: ClassVar[str] = "spares"
    agents: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Member to head: the node's health checks ran again. `problem` is what they found, None for a healthy node."""

    KIND: ClassVar[str] = "health"
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Member to head: the heartbeat. The head answers with an Echo of the same number.

    `heard` is the number of the newest Echo that the member got; 0 before the first.
    """

    KIND: ClassVar[str] = "beat"
    number: int
    heard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """Head to member: the answer to the Beat of this number."""

    KIND: ClassVar[str] = "echo"
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Head to member: the next attempt, with this node's own part of the world.

    Its global ranks are `first_rank` to `first_rank + workers - 1`, its role ranks likewise.
    `master` is the store of the node's role, which this node serves if `serves_store`;
    `is_failure_ignored`: the role goes on without a worker that failed. `world_digest` is the
    SHA-256 of `world.json`. `restarts`: failures of workers that the run answered with a restart so far. `notice` is
    the one that stands, which the workers hear of at their first call. `state` is the training state in memory with
    which the workers begin; None: with none. `state_from` are the keepers of the nodes that have it, where this one has
    not; `copies_to` is the keeper that gets copies of the states of this node. `is_source`: other nodes get the state
    that they begin with from this one.
    """

    KIND: ClassVar[str] = "assign"
    attempt: int
    group_rank: int
    group_world_size: int
    first_rank: int
    workers: int
    world_size: int
    role: str
    first_role_rank: int
    role_world_size: int
    master: Endpoint
    serves_store: bool
    is_failure_ignored: bool
    world_digest: str
    head: str
    restarts: int = 0
    notice: NoticeGiven | None = None
    state: StateVersion | None = None
    state_from: tuple[Endpoint, ...] = ()
    copies_to: Endpoint | None = None
    is_source: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveNotice:
    """Head to member: this attempt's workers will be stopped soon; nothing is stopped yet.

    The member has their calls wait, and answers with NoticePolls. The second one of an attempt only changes what the
    notice says.
    """

    KIND: ClassVar[str] = "give_notice"
    attempt: int
    notice: NoticeGiven


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticePolls:
    """Member to head: the largest numbers of calls that the node's workers have made; later ones wait.

    None where the workers were being stopped before the notice came: then no call of theirs waits.
    """

    KIND: ClassVar[str] = "notice_polls"
    attempt: int
    made: NoticeCounts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeFrom:
    """Head to member: the numbers of the first calls that hear of the notice, the same on all nodes that share a store.

    The calls that wait may go on. Numbers of 0 say that no call of this attempt hears of it.
    """

    KIND: ClassVar[str] = "notice_from"
    attempt: int
    first: NoticeCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Member to head: each worker of the node has its process, and the node's record says so durably."""

    KIND: ClassVar[str] = "started"
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Member to head: the first worker of the node has exited 0, and the wait for the others begins."""

    KIND: ClassVar[str] = "ended"
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Member to head: a worker failed, or could not be started."""

    KIND: ClassVar[str] = "failed"
    attempt: int
    failure: FailureRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Member to head: this node cannot go on with the attempt, for a reason other than a worker's failure.

    `state` is the training state with which its workers should begin, where that is what it cannot provide.
    """

    KIND: ClassVar[str] = "broken"
    attempt: int
    reason: str
    state: StateVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Member to head: all workers of the node exited 0, and the node's record says so durably.

    In a role whose failures are ignored it means that no worker of the node runs any more. `again` are the global ranks
    that exited 75 after a notice, as a set of ranks such as `0-6,8`: they have saved, and are to be started again.
    `held` are the training states in the memory of this node, if there are such ranks.
    """

    KIND: ClassVar[str] = "finished"
    attempt: int
    again: str = ""
    held: tuple[HeldState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """Member to head: a signal from outside ends this agent."""

    KIND: ClassVar[str] = "terminated"
    signal_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Head to member: stop the node's workers of this attempt, and why.

    `is_term_coming`: another agent got a TERM from outside, so this node is likely to get one as well.
    `takes_stacks`: ranks hang, and the stacks of those that run are taken before they are stopped.
    """

    KIND: ClassVar[str] = "stop"
    attempt: int
    manner: StopManner
    reason: str
    is_term_coming: bool = False
    takes_stacks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeStacks:
    """Head to every member: take the stacks of the workers that run, for the request with this id; nothing is stopped.

    It is no part of membership: the drivers send and answer it, and the machines do not see it.
    """

    KIND: ClassVar[str] = "take_stacks"
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinState:
    """Head to member: keep one training state in memory, from this version on, for the request with this id to save it.

    It and the four that follow are no part of membership: the drivers send and answer them, and the machines do not see
    them. `first`: None: the newest but one that is there. `number` counts the questions of a request, and the answer
    repeats it; what is pinned is given up after `within_s` in any case.
    """

    KIND: ClassVar[str] = "pin_state"
    request: str
    number: int
    first: StateVersion | None
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Member to head: what all ranks of the node hold from the version of `PinState` on, the pinned one first."""

    KIND: ClassVar[str] = "pinned"
    request: str
    number: int
    held: tuple[HeldState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveState:
    """Head to member: all nodes have pinned this state: keep it, and write `flush`'s part into this folder of saves.

    Without `flush` it is kept, and others write it. Both are answered with `Saved`.
    """

    KIND: ClassVar[str] = "save_state"
    request: str
    number: int
    version: StateVersion
    folder: str
    flush: Flush | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Member to head: the files that it has written and their records; or why not, and whether the state was gone."""

    KIND: ClassVar[str] = "saved"
    request: str
    number: int
    files: Mapping[str, KeptRecord]
    problem: str | None = None
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinState:
    """Head to member: the request is over; any state may be overwritten again."""

    KIND: ClassVar[str] = "unpin_state"
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Member to head: no worker of the attempt is left.

    `failures` are those of workers that failed by themselves, before the stop or, as their records say, after its TERM.

    `unkillable` are the processes that survived KILL. `store_port` is the port for the next attempt's store, if this
    node is to serve it. `succeeded` are the global ranks that had exited 0, as a set of ranks such as `0-6,8`. `step`
    is the furthest step that a heartbeat of the node's ranks named in the attempt, None if none did. `waiting` are the
    global ranks that waited for others in a collective when their stacks were taken, as a set of ranks; `paused` those
    that a signal or a debugger had stopped when the stop began. `held` are the training states in the memory of this
    node, checked since the workers have ended.
    """

    KIND: ClassVar[str] = "stopped"
    attempt: int
    failures: tuple[FailureRecord, ...]
    unkillable: tuple[int, ...]
    store_port: int
    succeeded: str = ""
    step: int | None = None
    waiting: str = ""
    paused: str = ""
    held: tuple[HeldState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Either direction: the sender ends the membership, and why. A connection closed without it means a dead agent.

    A member sends it when its workers are gone; it may join again.
    """

    KIND: ClassVar[str] = "dropped"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Head to member: the run is over; leave with this exit code.

    `ends_job`: this member ends the Slurm job when it leaves, because the script that would have ended it is gone.
    `stands_by`: it does so if the job is still there when as many others have had their time to end it; 0: it does not.
    `is_settled`: the result is durable, or the scheduler starts the job again when this start is over, so workers may
    use their whole time of grace; else other agents may go on with the run at any moment.
    `flush` is the training state in memory that this member writes to the run directory when it leaves.
    """

    KIND: ClassVar[str] = "end"
    exit_code: int
    cause: str
    ends_job: bool = False
    stands_by: int = 0
    is_settled: bool = True
    flush: Flush | None = None


Message = (
    Join
    | Welcome
    | Refused
    | Elsewhere
    | Spares
    | Health
    | Beat
    | Echo
    | Assign
    | GiveNotice
    | NoticePolls
    | NoticeFrom
    | Started
    | Ended
    | Failed
    | Broken
    | Finished
    | Terminated
    | Stop
    | TakeStacks
    | PinState
    | Pinned
    | SaveState
    | Saved
    | UnpinState
    | Stopped
    | Dropped
    | End
)

Report = Started | Ended | Failed | Broken | Finished | Stopped
REPORTS = (Started, Ended, Failed, Broken, Finished, Stopped)  # messages about the attempt that a member works on

_BY_KIND: dict[str, type[Message]] = {
    cls.KIND: cls
    for cls in (
        Join,
        Welcome,
        Refused,
        Elsewhere,
        Spares,
        Health,
        Beat,
        Echo,
        Assign,
        GiveNotice,
        NoticePolls,
        NoticeFrom,
        Started,
        Ended,
        Failed,
        Broken,
        Finished,
        Terminated,
        Stop,
        TakeStacks,
        PinState,
        Pinned,
        SaveState,
        Saved,
        UnpinState,
        Stopped,
        Dropped,
        End,
    )
}


def encode_message(message: Message) -> Json:
    """Return a message as a JSON object with its kind under `type`."""
    return {"type": message.KIND, **to_json(message)}


def decode_message(data: Json) -> Message:
    """Return the message in a JSON object.

    Raises:
        DecodeError: the message is of no known kind, or a field is missing or of another type.
    """
    kind = data.get("type") if isinstance(data, dict) else None
    cls = _BY_KIND.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise DecodeError(f"no message is of type {kind!r}")
    return from_json(cls, data, where=cls.KIND)
