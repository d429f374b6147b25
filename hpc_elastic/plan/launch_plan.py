"""The launch plan: all decided values of a run, written at its submission and read by every agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hpc_elastic.codec import DecodeError, from_json, to_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.plan.container import ContainerPlan
from hpc_elastic.plan.roles import NodesPlan, RolePlan, place_roles
from hpc_elastic.plan.std_streams import ALL_STREAMS, NO_STREAMS, LocalStreams

FORMAT_VERSION = 1

SchedulerName = Literal["slurm", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesPlan:
    """The resources of one node, and the scheduler options that request them.

    The first group of fields tells the agent what the node has. The second group holds the values of the
    scheduler's options of that name; None: the option is not given. At most one of the three
    `memory_per_...` is set. These options are taken out of `sbatch`, so that none is given twice.
    """

    gpus_per_node: int | None = None
    cpus_per_worker: int | None = None
    exclusive: bool = False

    cpus_per_task: int | None = None  # the CPUs of all workers of a node, because a node's one task is its agent
    gpus_per_node_option: str | None = None  # --gpus-per-node: 4, a100:4
    gres: str | None = None  # --gres: gpu:4,lscratch:100
    memory_per_node: str | None = None  # --mem: 64G; 0 is all memory of the node
    memory_per_cpu: str | None = None  # --mem-per-cpu
    memory_per_gpu: str | None = None  # --mem-per-gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPlan:
    """The pause before restart k (0, 1, 2 ...) is `first_s * factor**k` seconds, at most `max_s`."""

    first_s: float
    factor: float
    max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPlan:
    """When the workers start again after a failure or the loss of a node."""

    max_restarts: int
    backoff: BackoffPlan
    no_progress_limit: int
    max_node_losses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticPlan:
    """The time-outs of membership, in seconds; after `exit_timeout_s` the run is to `fail` or to `succeed`."""

    join_timeout_s: float
    join_retries: int
    lease_s: float
    exit_timeout_s: float | None
    rejoin: Literal["at_restart", "immediately"]
    after_exit_timeout: Literal["fail", "succeed"] = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalsPlan:
    """The times between TERM and KILL: `grace_s` at a stop, `restart_grace_s` at a restart after a failure.

    `notice` is the signal that rank processes with a handler for it get at a notice; empty: none.
    """

    notice: str
    lead_s: float
    grace_s: float
    restart_grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeuePlan:
    """How often, and for which causes, the scheduler is asked to start the job again.

    `by`: with `scontrol requeue`, or by another job in a chain, which waits for this one to end.
    """

    max: int
    on: tuple[str, ...]
    by: Literal["requeue", "chain"] = "requeue"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlan:
    """Training states in memory: how many percent of it they may take, and when the newest one is written to disk.

    `replicas` copies of each rank's state are on another node, of another one of the site's failure `domains` (host
    lists, or each node's switch if `is_by_switch`), and are sent with at most `rate` bytes a second (None: as fast as
    it goes). `load_from` is the run directory
    of another run, with whose state the first attempt begins.
    """

    limit_percent: int = 40
    replicas: Literal[0, 1] = 0
    rate: int | None = 500 * 1024 * 1024
    domains: tuple[str, ...] = ()
    is_by_switch: bool = False
    flush: tuple[str, ...] = ("requeue", "failure", "cancel")
    load_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsPlan:
    """The files that workers write, and which of their lines the agent's log repeats.

    `tee_ranks` are global ranks, both of whose streams are repeated; `tee` and `redirects` are by local
    rank. A teed stream is redirected too. `local_ranks_filter` None: no worker is left out.
    """

    per: Literal["rank", "node"]
    tee_ranks: tuple[int, ...] = ()
    tee: LocalStreams = NO_STREAMS
    redirects: LocalStreams = ALL_STREAMS
    local_ranks_filter: tuple[int, ...] | None = None
    prefix: str = "[${node}:${rank}] "
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    max_size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """The site's network settings; `hostname_transform` is a suffix such as `i` in Juelich."""

    interface: str | None = None
    hostname_transform: str | None = None
    port_range: tuple[int, ...] = (20000, 32000)  # first and last
    nccl_socket_ifname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """What each node copies before its agent starts, and into which folder; both keep `${NAME}` and `$$`."""

    source: str
    target: str
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlan:
    """Which folder's tracked files are copied at the submission, and where to; both are plain paths."""

    source: str
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """The plan of one run, with no value left to decide; durations are seconds, sizes bytes, paths absolute.

    `env`, `workdir`, `metrics_textfile` and the roles' `env` and arguments keep `${NAME}` and `$$`, which
    `plan.references` expands on the node; a dollar sign that is part of a path is already written as
    `$$`. `roles` has at least one role; `nodes` is the sum of the roles' nodes, with the spares.
    `package_dir` is the folder of this package, whose `launch.py` starts the agent under `python`.
    `stall_timeout_s` counts from a rank's latest heartbeat, `start_timeout_s` from its start to the first one; None:
    no rank counts as stalled for that. `health` has the time limit in seconds of each health check that runs, see
    `plan.health`; `scratch` is the folder of local scratch, in which `${NAME}` expands on the node; None: TMPDIR, else
    /tmp. `sbatch` maps long options without their dashes to values; `true` is an option that has no value.
    `host_python` is the Python of the script's own programs where `python` is one of an image or of what is staged;
    None: it is `python`. `snapshot` is what `workdir` is a copy of, if it is one; setup lines run in its source.
    """

    format_version: int
    run: str
    name: str
    run_dir: str
    created: str
    package_dir: str
    package_version: str
    site: str
    scheduler: SchedulerName
    template: str
    nodes: NodesPlan
    roles: tuple[RolePlan, ...]
    resources: ResourcesPlan
    time_s: float | None
    setup: tuple[str, ...]
    workdir: str
    python: str
    env: Mapping[str, str]
    worker_env_slurm: Literal["hide", "keep", "rank"]
    restart: RestartPlan
    progress_file: str | None
    elastic: ElasticPlan
    signals: SignalsPlan
    stall_timeout_s: float | None
    start_timeout_s: float | None = None
    requeue: RequeuePlan
    state: StatePlan = field(default_factory=StatePlan)
    start: Literal["auto", "fork", "spawn"]
    preload: tuple[str, ...]
    logs: LogsPlan
    log_level: str
    metrics_textfile: str | None = None
    metrics_comment: bool = False
    binding: Literal["none", "numa", "cores", "nearest"] = "none"
    virtual_local_rank: bool = False
    network: NetworkPlan
    sbatch: Mapping[str, str | None]
    health: Mapping[str, float] = field(default_factory=dict)
    scratch: str | None = None
    srun: tuple[str, ...] = ()  # additional srun arguments of the site, verbatim
    container: ContainerPlan | None = None
    host_python: str | None = None
    stage: StagePlan | None = None
    snapshot: SnapshotPlan | None = None

    def role_on(self, node_id: int, nodes: int) -> RolePlan:
        """Return the role of the node with this id (0, 1, 2 ...) in a step of `nodes` nodes."""
        return place_roles(self.roles, nodes)[node_id]

    def placed_on(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return the name of each node's role in a step of these nodes, which are in the order of their ids."""
        placed = place_roles(self.roles, len(nodes))
        return {node: role.name for node, role in zip(nodes, placed, strict=True)}

    def workers_on(self, node_id: int, nodes: int) -> int:
        """Return the number of workers on the node with this id (0, 1, 2 ...) in a step of `nodes` nodes."""
        placed = place_roles(self.roles, nodes)
        return placed[node_id].workers_at(node_id - placed.index(placed[node_id]))

    def key_in(self, role: RolePlan, key: str) -> str:
        """Return the name of a role's key as the job file has it, for messages."""
        return key if len(self.roles) == 1 else f"roles[{self.roles.index(role)}].{key}"

    @property
    def most_workers_on_a_node(self) -> int:
        """The largest number of workers of any node, for which CPUs are requested."""
        return max(role.most_workers_on_a_node for role in self.roles)


def dump_plan(plan: LaunchPlan) -> str:
    """Return the plan as the text of `plan.json`."""
    return json.dumps(to_json(plan), indent=2, ensure_ascii=False) + "\n"


def parse_plan(text: str) -> LaunchPlan:
    """Parse the text of `plan.json`.

    Raises:
        RunDirectoryError: the text is not a plan, or has a version that this package does not know.
    """
    try:
        data = json.loads(text)
        version = data["format_version"]
        if version != FORMAT_VERSION:
            raise RunDirectoryError(
                f"plan.json has format_version {version}, this hpc_elastic reads {FORMAT_VERSION}",
                tip="use the version of hpc_elastic that submitted the run",
            )
        return from_json(LaunchPlan, data)
    except (DecodeError, KeyError, TypeError, ValueError) as error:
        raise RunDirectoryError(f"plan.json is not a launch plan: {error}") from error
