"""The records in a run directory: one frozen dataclass for each kind of file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import Any, Literal

from hpc_elastic.errors import RendezvousCause
from hpc_elastic.rundir.state_records import ChosenState
from hpc_elastic.rundir.states import RunState as RunState
from hpc_elastic.rundir.states import WorkerState as WorkerState
from hpc_elastic.rundir.submissions import FORMAT_VERSION as FORMAT_VERSION
from hpc_elastic.rundir.submissions import ArraySubmission as ArraySubmission
from hpc_elastic.rundir.submissions import ArrayTask as ArrayTask
from hpc_elastic.rundir.submissions import Submission as Submission


def utc_text(unix_seconds: float) -> str:
    """Format a point in time as every record has it: UTC, ISO 8601, microseconds."""
    moment = datetime.fromtimestamp(unix_seconds, timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A line of `requests.jsonl`, which running agents read once a second.

    A `stop` comes from a person or from the script; `by` says who asked, as user@host. A `start` comes from the agent
    on the node `by` that has claimed this `allocation`: agents of an earlier allocation that are still alive have to
    leave. `left` comes from a head: no worker of its allocation is left. `requeue` comes from a head: its allocation
    has ended for this `reason`, a word of `RESULT_REASONS`, and the job is to be started again, without `nodes` if the
    scheduler can do that; `charged` is what that head had charged and no claim has; `reservation` is the one whose end
    was the job's time limit. `failed` comes from a head whose agent failed itself. A `chain` says that the job `id`
    waits for the end of this `allocation` to take its place. A `stacks` comes from a person: every agent writes the
    stacks of its workers, and an event with this `id`. So does a `save`: the training state in memory is written within
    `seconds_left`, and the head writes the event.

    A `notice` comes from a person or from the script: the workers are told that they will be stopped in about
    `seconds_left`, and go on. A `restart` asks for the next attempt; a `drain` asks for it without the node `node`.
    `reason` is for people, but for a `notice` one of `NOTICE_REASONS`.

    A `stop` with `seconds_left` is a notice first, and stops the workers when that time is over or all of them have
    exited. With `requeue` it ends this `allocation` only, and the job is to be started again; agents of a later one
    pass over it. Without, it ends the run, in a later allocation at once.
    """

    format_version: int = FORMAT_VERSION
    kind: str
    by: str
    time: str
    reason: str | None = None
    allocation: int | None = None
    id: str | None = None
    node: str | None = None
    nodes: tuple[str, ...] = ()
    seconds_left: float | None = None
    requeue: bool = False
    charged: Charged | None = None
    reservation: str | None = None


NoticeReason = Literal["time_limit", "preemption", "operator"]
NOTICE_REASONS: tuple[NoticeReason, ...] = ("time_limit", "preemption", "operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address at which an agent listens."""

    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationClaim:
    """`allocations/NNNN.json`: one start by the scheduler, and its first head.

    `host` is the name of the machine of `node`; the two differ on the local backend only. `scripts` has a digest of
    each script that is an entrypoint, as that node saw it; `changed_scripts` differ from those of the start before.
    `relieves`: the first head of this start, which most nodes could not reach, so that the run begins without it.
    """

    format_version: int = FORMAT_VERSION
    run: str
    allocation: int
    job_id: str
    restart_count: int
    array_task: int | None
    nodes: tuple[str, ...]
    node: str
    host: str
    head: Endpoint
    time: str
    scripts: Mapping[str, str] = field(default_factory=dict)
    changed_scripts: tuple[str, ...] = ()
    relieves: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousRecord:
    """`nodes/<node>/rendezvous.json`: why a node has not joined the head, as its own agent sees it.

    The file exists while that is so. `job_id` and `restart_count` name the start by the scheduler;
    `detail` continues a sentence that begins with the node's name; `address` and `port` are those tried for the head;
    `gave_up`: the agent does not try to join this head any more, after so many `tries`; `awaits_other`: it has not
    ended, but waits a moment for another agent to take the head's place.
    """

    format_version: int = FORMAT_VERSION
    run: str
    node: str
    job_id: str
    restart_count: int
    cause: RendezvousCause
    detail: str
    head: str
    address: str | None
    port: int | None
    tries: int
    gave_up: bool
    versions: Mapping[str, str]
    time: str
    awaits_other: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPresence:
    """`attempts/NNNN/head.json`: the head that has opened the attempt is there, between it and the next one.

    It is written about once a second while nodes that this head has lost may live: one of them that reaches nobody does
    not end the run as long as `number` grows.
    """

    format_version: int = FORMAT_VERSION
    run: str
    attempt: int
    allocation: int
    head: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """The part of the run's budget that all its attempts so far have used up."""

    restarts: int = 0  # worker failures that were answered with a restart
    node_losses: int = 0  # nodes of a world that were lost, because their agent or the connection to it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node whose agent may take the place of a lost head, and where that agent listens."""

    node: str
    agent: Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The part of a roster that an agent without a head needs, so that not each of thousands reads the whole of it.

    `head` is where the head listens, None if it has no part in the world. `turns` are the first 64 of the other
    members that may take its place, in the order of their turns; `spares` those that may when no member does.
    """

    head: Endpoint | None
    turns: tuple[Candidate, ...]
    spares: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """A node that is blamed for a failure, so that no workers start on it; `allocation` is that of the blame."""

    node: str
    why: str
    allocation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LostNode:
    """A node that worlds of this run have lost so many `times`; `allocation` is that of the latest loss."""

    node: str
    times: int
    allocation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Charged:
    """What a head had charged for the end of `attempt` when its allocation ended, before the next attempt had a claim.

    The other fields are those of a claim.
    """

    attempt: int
    spend: Spend
    failure_signature: str | None = None
    same_failures: int = 0
    progress: str | None = None
    step: int | None = None
    set_aside: tuple[SetAside, ...] = ()
    lost_nodes: tuple[LostNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptClaim:
    """`attempts/NNNN/claim.json`: which head opened the attempt, after which other one, and the spend so far.

    `roles` names the roles whose workers start in this attempt; the others run on from an older one.
    `same_failures` counts how often in a row the run failed with `failure_signature` and no
    progress in between; it is compared with `restart.no_progress_limit`. `progress` is a digest of the files that show
    progress, and `step` the furthest step that a heartbeat has named, at the latest failure. `candidates` is None where
    an older version wrote the claim: then `world.json` says the same. `root_cause` is why the attempt before ended,
    None for the first one, and where no failure ended it. `set_aside` are the nodes that are blamed for earlier
    failures, the latest last; `lost_nodes` those that were lost through a fault of their own, the latest last. `states`
    are the training states in memory with which the roles begin that can; the other roles begin with none.
    """

    format_version: int = FORMAT_VERSION
    run: str
    attempt: int
    allocation: int
    predecessor: int | None
    head: str
    members: tuple[str, ...]
    roles: tuple[str, ...]
    reason: str
    spend: Spend
    failure_signature: str | None = None
    same_failures: int = 0
    progress: str | None = None
    step: int | None = None
    set_aside: tuple[SetAside, ...] = ()
    lost_nodes: tuple[LostNode, ...] = ()
    candidates: Candidates | None = None
    root_cause: RootCause | None = None
    states: tuple[ChosenState, ...] = ()
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """`budget.json`: the spend of the latest claim beside the limits, for people."""

    format_version: int = FORMAT_VERSION
    attempt: int
    spend: Spend
    max_restarts: int
    max_node_losses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldNode:
    """One node of a world, by group rank. Its global ranks are `first_rank` and the following."""

    node: str
    node_id: int
    role: str
    agent: Endpoint
    first_rank: int
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldRank:
    """One worker of a world."""

    rank: int
    node: str
    local_rank: int
    role: str
    role_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldRole:
    """One role of a world: its workers' store, and the attempt in which its workers started."""

    role: str
    size: int
    restart: str
    master: Endpoint
    master_node: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpare:
    """A node that was there when a world was opened, without a part in it; its agent may succeed a dead world."""

    node: str
    node_id: int
    agent: Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """`attempts/NNNN/world.json`: the roster. `ranks` is in the order of the global ranks.

    `launch_node` is the node of the step on which srun runs, None if it runs elsewhere or is not known;
    `is_launch_node_lost`: that node is lost, so only the agents will end the Slurm job. `spares` are the nodes that
    waited when the attempt was opened, in the order of their ids but unhealthy ones last, 64 at most.
    """

    format_version: int = FORMAT_VERSION
    run: str
    attempt: int
    allocation: int
    head: str
    roles: tuple[WorldRole, ...]
    nodes: tuple[WorldNode, ...]
    ranks: tuple[WorldRank, ...]
    launch_node: str | None = None
    is_launch_node_lost: bool = False
    spares: tuple[WorldSpare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """The failure of one worker; `exitcode` is negative for a signal, as in torch's ProcessFailure.

    `failure_class` is a word of `hpc_elastic.failures.classes.FailureClass`; `timestamp` is in Unix seconds, with
    their fraction. `frame` is the innermost frame of the user's own code, such as `train.py:88 in step`; `detail` is
    what else is known, such as `251 of 256 GiB`. `is_after_stop`: the worker ended after its agent had sent TERM.
    """

    rank: int
    local_rank: int
    role: str
    node: str
    attempt: int
    pid: int
    exitcode: int
    signal_name: str | None
    error_file: str
    message: str
    timestamp: float
    failure_class: str = field(metadata={"json": "class"})
    frame: str = ""
    detail: str = ""
    is_after_stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """The cause of an attempt's end, found among the failures of all its nodes (`hpc_elastic.failures.root_cause`).

    `line` is the sentence for people. `rank`, `node`, `frame` and `failure_class` are those of the failure that it
    names, `rank` None if it is about a node; `nodes` are the nodes that were lost, or on which ranks ran on, if they
    are several, and `node` is empty then. `candidates` are all ranks that may be the cause, if they are several;
    `failed`, `victims` and `silent` are the ranks that failed by themselves, that failed because another one did, and
    that did neither and were stopped: each a set of ranks as text, such as `0-6,8`. `observed_first` is the rank
    whose failure the head heard of first.
    """

    attempt: int
    failure_class: str = field(metadata={"json": "class"})
    line: str
    rank: int | None = None
    node: str = ""
    nodes: tuple[str, ...] = ()
    frame: str = ""
    timestamp: float = 0.0
    candidates: str = ""
    failed: str = ""
    victims: str = ""
    silent: str = ""
    observed_first: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """`attempts/NNNN/nodes/<node>.json`: one node's part in an attempt, as torch's RunResult of an agent.

    All or nothing: `return_values` has the global ranks of a node that SUCCEEDED, `failures` those that failed of one
    that FAILED or is UNHEALTHY; a worker that the agent stopped is in neither. Where a function returned, its value's
    pickle is the file that `return_values` names, by its path in the run directory; scripts have none.
    The state is HEALTHY, with no end, from when every worker has its process until they are gone, and UNHEALTHY if one
    of them has failed and the others run on, because failures of the role are ignored. `pids` are the workers' process
    ids by global rank; `unkillable` lists process ids that survived KILL. `detail` is the traceback of an agent that
    itself failed, else empty.
    """

    format_version: int = FORMAT_VERSION
    run: str
    attempt: int
    node: str
    state: WorkerState
    role: str
    ranks: tuple[int, ...]
    pids: Mapping[str, int]
    reason: str
    failures: Mapping[str, FailureRecord]
    return_values: Mapping[str, str]
    unkillable: tuple[int, ...] = ()
    detail: str = ""
    started: str
    ended: str | None

    def is_failed(self) -> bool:
        """Return whether a worker of this node failed; an attempt that was stopped is no failure, as in torch."""
        return self.state is WorkerState.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationTime:
    """What the time of one allocation was spent on: seconds by use, and the share of training, None without any."""

    allocation: int
    seconds: Mapping[str, float]
    useful_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """What the time of a run's allocations was spent on (`hpc_elastic.useful_time`).

    `seconds` is by use, over all allocations; `useful_share` is the share of training, None if there is no time.
    `queued_s` is how long the job waited for its allocations, which are without it. `has_steps`: ranks named their
    steps in heartbeats. `are_repeats_known`: steps that were done again are told from new ones.
    """

    useful_share: float | None
    seconds: Mapping[str, float]
    queued_s: float | None
    has_steps: bool
    are_repeats_known: bool
    allocations: tuple[AllocationTime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResultRecord:
    """`result.json`: how the run ended; `failures` is by global rank, of the last attempt.

    All or nothing, as torch's RunResult: `return_values` only if it SUCCEEDED, `failures` only if not,
    and workers that the agents stopped are in neither. `return_values` names files, as a NodeResult's does.
    `reason` is one word of `RESULT_REASONS`; `cause` is the line for people; `restarts` counts the
    worker failures that were answered with a restart; `written_by` is a node, `script` or `login`. `root_cause` is why
    the last attempt failed, None if it did not. `useful_time` is what its time was spent on, None in old runs.
    """

    format_version: int = FORMAT_VERSION
    run: str
    state: RunState
    exit_code: int
    reason: str
    cause: str
    attempts: int
    restarts: int
    failures: Mapping[str, FailureRecord]
    return_values: Mapping[str, str]
    nodes: tuple[str, ...]
    started: str | None
    ended: str
    written_by: str
    root_cause: RootCause | None = None
    useful_time: TimeSpent | None = None

    def is_failed(self) -> bool:
        """Return whether the state is FAILED, as torch's; a run that was cancelled neither failed nor succeeded."""
        return self.state is RunState.FAILED


RESULT_REASONS = {
    "succeeded": "every rank of one attempt exited 0",
    "restarts_used_up": "a worker failed and max_restarts was spent",
    "no_progress": "the same failure came no_progress_limit times with no progress in between",
    "stop_requested": "a person asked for it, by `hpc-elastic cancel` or `hpc-elastic stop`",
    "requeue_requested": "`hpc-elastic stop --requeue` asked for another start of the job, which there will not be",
    "terminated": "the agents got a TERM from outside: scancel, or a cause that Slurm did not say",
    "time_limit": "the job's time limit was reached, and the job is not started again",
    "preempted": "Slurm took the job's nodes for another job, and the job is not started again",
    "deadline": "the job waited, and its deadline (sbatch --deadline) left no time for a start",
    "notice_taken": "every rank exited 0, or 75 after a notice of an operator, and the job is not started again",
    "out_of_memory": "Slurm killed the job because it went over its memory, before an agent could write a result",
    "nodes_missing": "too few nodes joined within join_timeout",
    "node_lost": "a node or its agent was lost, and too few were left",
    "node_losses_used_up": "a node or its agent was lost, and so many before it that max_node_losses was spent",
    "setup_failed": "a setup line failed, or a node is not what the plan needs",
    "run_directory": "Slurm could not open the job's output in the run directory, so its script never began",
    "start_failed": "the workers of a node could not be started",
    "exit_timeout": "ranks still ran elastic.exit_timeout after the first one had exited 0",
    "unkillable": "a process survived KILL",
    "agent_failed": "an agent itself failed; its traceback is in the node's record",
    "no_result": "the agents or the job ended, and no agent wrote a result",
}


class EventSource(str, Enum):
    """The subject of an event of a worker group, as in torch: the agent, or one of its workers."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line of `nodes/<node>/events.jsonl`. `name` is dotted: `attempt.started`, `worker.failed`.

    `source` is set for the events that torch's agent has too, `torchelastic.worker.status.<STATE>`.
    """

    format_version: int = FORMAT_VERSION
    time_ns: int
    run: str
    node: str
    allocation: int
    attempt: int
    name: str
    message: str
    source: EventSource | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMark:
    """A line of `attempts/NNNN/nodes/<node>.marks.jsonl`: how long logs of the node's ranks were at a time.

    `ends` has the logs that have changed since the line before: `3.stdout` and the size in bytes. A size that is
    smaller than before says that the log was cut for `logs.max_size`.
    """

    format_version: int = FORMAT_VERSION
    time_ns: int
    ends: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricData:
    """A line of `nodes/<node>/metrics.jsonl`: torch's MetricData, and where it was measured.

    `timestamp` is in Unix seconds; `group_name` is torch's own group, `torchelastic`.
    """

    format_version: int = FORMAT_VERSION
    timestamp: float
    group_name: str
    name: str
    value: float
    run: str
    node: str
    attempt: int
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSample:
    """One rank in a Sample: the step of its last heartbeat, and the seconds since it; None without a heartbeat."""

    rank: int
    step: int | None
    age_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU in a Sample, as the vendor's tool numbers it; what the tool does not say is None."""

    index: int
    busy_percent: float | None
    memory_used: int | None
    memory_total: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A line of `nodes/<node>/samples.jsonl`: what the node and its ranks did at one moment.

    Memory is in bytes, disk and network are in bytes a second since the sample before, and CPU is in percent: of all
    cores of the node in `cpu_percent`, of one core in `workers_cpu_percent`. `workers_memory` is the sum of the
    workers' resident sets. What could not be read is None, and so is a rate in the first sample. `gpus` is empty in
    most lines: the vendor's tool is asked once a minute.
    """

    format_version: int = FORMAT_VERSION
    time_ns: int
    run: str
    node: str
    attempt: int
    cpu_percent: float | None
    load: float | None
    memory_used: int | None
    memory_total: int | None
    disk_read: float | None
    disk_written: float | None
    network_received: float | None
    network_sent: float | None
    workers_cpu_percent: float | None
    workers_memory: int | None
    gpus: tuple[GpuSample, ...] = ()
    ranks: tuple[RankSample, ...] = ()
