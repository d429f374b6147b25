"""The observations of a head, and the decisions that can follow from them; the policy itself is injected."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.membership.operator_stop import OperatorStop
from hpc_elastic.rundir.records import FailureRecord, LostNode, NoticeReason, RunState, SetAside, Spend
from hpc_elastic.rundir.state_records import ChosenState


class Trigger(str, Enum):
    """Why a decision is needed."""

    WORKER_FAILED = "worker_failed"
    NODE_BROKEN = "node_broken"  # a node's workers cannot run there: the store host died, say
    STATE_MISSING = "state_missing"  # a node has not the training state with which the attempt was to begin
    NODE_LOST = "node_lost"  # its connection closed, or its lease ran out
    ENDED_SILENTLY = "ended_silently"  # earlier starts of the job ended without a word, and Slurm started it again
    NODE_UNFIT = "node_unfit"  # it joined and said that it cannot take part
    NODES_MISSING = "nodes_missing"  # join_timeout passed with fewer than `min`
    STOP_REQUESTED = "stop_requested"  # by a person, through the run directory
    RESTART_REQUESTED = "restart_requested"  # likewise
    DRAIN_REQUESTED = "drain_requested"  # likewise: the node is to be used no more
    TERMINATED = "terminated"  # an agent got a TERM from outside
    TIME_LIMIT = "time_limit"  # the scheduler will end the job soon
    PREEMPTED = "preempted"  # the scheduler takes the job's nodes for another one
    SUCCEEDED = "succeeded"  # every rank exited 0
    NOTICE_TAKEN = "notice_taken"  # every rank exited 0, or 75 after a notice: saved, and to be started again
    EXIT_TIMEOUT = "exit_timeout"  # ranks still run so long after the first one exited 0
    UNKILLABLE = "unkillable"  # processes survived KILL
    NODE_JOINED = "node_joined"  # an agent joined while the world has room, which may be reason for a new attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One event that the head saw.

    `role` is the role of the workers that the event is about, if it is about workers; `failure` the failure of one, if
    and only if one has failed. `progress` is a digest of the progress files, if there are any; `step` the furthest step
    that a heartbeat of the attempt named, known once it is settled. After a loss `is_enough` says whether as many nodes
    as the run needs are still there or can still join, and `node_losses` how many nodes the run has lost, including
    this one.
    `is_settled` is False for a failure that was heard of while workers still run or stop: it may be a consequence of
    another one, of which the head will hear before the decision is carried out; then it is asked once more.
    `notice` says why the notice was given that all ranks have taken; `stop` is the stop that a person has announced.
    `may_savers_finish`: after a loss, nobody can open an attempt while ranks that save go on under this head.
    """

    trigger: Trigger
    attempt: int
    role: str | None = None
    failure: FailureRecord | None = None
    nodes: tuple[str, ...] = ()
    detail: str = ""
    progress: str | None = None
    step: int | None = None
    is_enough: bool = False
    node_losses: int = 0
    is_settled: bool = True
    notice: NoticeReason | None = None
    stop: OperatorStop | None = None
    may_savers_finish: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The run's attempts, spend and failures so far, from its latest claim."""

    attempts: int = 0
    spend: Spend = field(default_factory=Spend)
    failure_signature: str | None = None
    same_failures: int = 0
    progress: str | None = None
    step: int | None = None  # the furthest that a heartbeat named in an attempt that failed
    set_aside: tuple[SetAside, ...] = ()  # the nodes that are blamed, the latest last
    lost_nodes: tuple[LostNode, ...] = ()  # those that were lost through a fault of their own, the latest last
    states: tuple[ChosenState, ...] = ()  # with which the latest attempt began


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentEnds:
    """The starts of the job since the latest attempt was opened that ended without a word, all agents killed at once.

    `has_worked`: one of them is the start in which that attempt was opened. `idle`: how many others there are, which
    opened none. `step` is the furthest step of the attempt that is recorded, `progress` the digest of the progress
    files now; each is None if there is none.
    """

    has_worked: bool = False
    idle: int = 0
    step: int | None = None
    progress: str | None = None

    @property
    def are_there(self) -> bool:
        """Whether there is any."""
        return self.has_worked or self.idle > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartWorkers:
    """Stop workers and start them in the next attempt, no earlier than `at` (the monotonic `now`).

    `roles` are the roles whose workers are restarted; None: those of all roles.
    """

    roles: frozenset[str] | None = None
    at: float
    manner: StopManner
    reason: str
    history: History


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Stop the workers and end the run. `reason` is one of `records.RESULT_REASONS`."""

    state: RunState
    exit_code: ExitCode
    manner: StopManner
    reason: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """Go on as if nothing had happened; only log it."""

    reason: str


Decision = RestartWorkers | Finish | Ignore


class Decide(Protocol):
    """The policy: a pure function of what happened before, what is seen, and the monotonic time."""

    def __call__(self, history: History, observation: Observation, now: float) -> Decision:
        """Return the decision about an observation."""
