"""The actions that the state machines return; the agent's drivers carry them out in the order given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hpc_elastic.membership.messages import Assign, Message, StopManner
from hpc_elastic.membership.notices import NoticeCounts, NoticeGiven
from hpc_elastic.membership.succession import LostHead
from hpc_elastic.rundir.records import AttemptClaim, NodeResult, RunResultRecord, World
from hpc_elastic.rundir.state_records import Flush

Level = Literal["error", "warning", "info", "debug"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A line for people: it goes into the agent's log and, from the head, also into the script's output.

    The line is left out where `log_level` is above its level.
    """

    text: str
    level: Level = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """An event to write into the run's records."""

    name: str
    message: str
    attempt: int
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToMember:
    """Head: send a message to a member."""

    node: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Head: close the connection to a member."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAttempt:
    """Head: claim the attempt and write its roster, then call `claimed`. The agent fills in the time."""

    claim: AttemptClaim
    world: World


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """Write the run's result, if there is none, then call `result_written`. The agent fills in the time."""

    result: RunResultRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepStates:
    """Head: what was written after the attempt `ended` is the training state after `latest`, too."""

    ended: int
    latest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskScheduler:
    """Head: ask the scheduler which of these silent nodes it has given up for good; call `lost` for them.

    Without an answer nothing is lost: the end of the lease decides.
    """

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOver:
    """Head: stop being a head, because nothing is left to coordinate.

    `have_all_left`: every member that it ever had has said goodbye or is dead, so no worker of the run is left.
    `ends_job`: this agent has to end the Slurm job, because whoever would have done so was lost as the run ended.
    `looks_for_script`: it has to if the batch script's node is gone, whose agent was: nobody has looked since.
    """

    have_all_left: bool
    ends_job: bool = False
    looks_for_script: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """Head: step down and be a member again, because another head goes on with the run.

    The agents that are still connected are told so before their connections are closed.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToHead:
    """Member: send a message to the head."""

    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkers:
    """Member: start this node's workers, then call `workers_started`, or `failure_recorded` if one cannot start."""

    assign: Assign


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWorkers:
    """Member: stop what is left of the attempt's workers, then call `workers_stopped`.

    `is_terminated`: this agent got a TERM, whose sender may have sent one to the workers as well; this agent sends one
    only if they have none.
    `is_term_coming`: the workers are likely to get a TERM in a moment; this agent sends one only if they do not.
    `takes_stacks`: take the stacks of the workers before.
    """

    attempt: int
    manner: StopManner
    is_terminated: bool
    is_term_coming: bool = False
    takes_stacks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldForNotice:
    """Member: have the calls of the attempt's workers wait that ask for a notice, then call `polls_counted`."""

    attempt: int
    notice: NoticeGiven


@dataclass(frozen=True, slots=True, kw_only=True)
class NameNotice:
    """Member: let the waiting calls go on; those with these numbers and above hear of the notice."""

    attempt: int
    first: NoticeCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFailure:
    """Member: complete the error file of a failed worker, then call `failure_recorded`.

    `ended_at`: when the agent saw its end, in monotonic seconds; the order of failures on a node tells the first one.
    `is_after_stop`: the worker ended after the TERM of a stop. Unless it has left its own account of a failure, call
    `ended_by_stop` instead.
    """

    attempt: int
    local_rank: int
    exitcode: int
    ended_at: float
    is_after_stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteNodeResult:
    """Member: write this node's record, then call `node_result_written`. The agent fills in the times."""

    result: NodeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoverHead:
    """Member: no worker is left; close the connection to the lost head if there is one, and find another head."""

    lost: LostHead


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Member: no worker is left; end this agent, and the Slurm job too if `ends_job`; before, write `flush`'s state.

    `stands_by`: end the job if it is still there when as many others have had their time to end it; 0: do not.
    `looks_for_script`: end it if the batch script's node is gone.
    """

    exit_code: int
    cause: str
    ends_job: bool = False
    stands_by: int = 0
    looks_for_script: bool = False
    flush: Flush | None = None


Action = (
    Log
    | Note
    | SendToMember
    | Drop
    | ClaimAttempt
    | WriteResult
    | KeepStates
    | AskScheduler
    | HeadOver
    | Superseded
    | SendToHead
    | StartWorkers
    | StopWorkers
    | HoldForNotice
    | NameNotice
    | RecordFailure
    | WriteNodeResult
    | DiscoverHead
    | Leave
)
