"""A job as an object: the keys of job.yaml, typed for editors; what they mean is in docs/reference/job-yaml.md.

None is a key that is not given; a mapping can say `null` as well, which takes a site's default away. The values are
checked when the job is submitted, all at once, as those of a job file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from os import PathLike
from typing import Any, Literal, TypedDict

Duration = str | timedelta  # 90m, 2h30m, 1-12:00:00
Path = str | PathLike[str]
Scalar = str | int | float | bool


class Nodes(TypedDict):
    """`nodes`: how many the run may have."""

    min: int
    max: int


class Resources(TypedDict, total=False):
    """`resources`: what is asked for on every node."""

    gpus_per_node: int | None
    cpus_per_worker: int | None
    memory_per_node: str | int | None
    exclusive: bool


class Entrypoint(TypedDict, total=False):
    """`entrypoint`: exactly one of script, module and command, and its arguments, at first and after a restart."""

    script: Path
    module: str
    command: Path
    args: Sequence[Scalar]
    restart_args: Sequence[Scalar]


class WorkerEnv(TypedDict, total=False):
    """`worker_env`: what workers see of Slurm's environment."""

    slurm: Literal["hide", "keep", "rank"]


class Backoff(TypedDict, total=False):
    """`restart.backoff`: the pause before a restart."""

    first: Duration
    factor: float
    max: Duration


class Restart(TypedDict, total=False):
    """`restart`: when the workers start again."""

    max_restarts: int
    backoff: Backoff
    no_progress_limit: int
    max_node_losses: int


class Progress(TypedDict, total=False):
    """`progress`: how progress is seen."""

    file: Path | None


class Elastic(TypedDict, total=False):
    """`elastic`: how nodes come and go."""

    join_timeout: Duration
    join_retries: int
    lease: Duration
    exit_timeout: Duration | None
    after_exit_timeout: Literal["fail", "succeed"]
    rejoin: Literal["at_restart", "immediately"]


class Signals(TypedDict, total=False):
    """`signals`: how workers are told to stop."""

    notice: str | None
    lead: Duration
    grace: Duration
    restart_grace: Duration


class Requeue(TypedDict, total=False):
    """`requeue`: when Slurm is asked to start the job again."""

    max: int
    on: Sequence[Literal["preempted", "time_limit", "node_loss"]]


class TrainingState(TypedDict, total=False):
    """`state`: training states that are kept in memory."""

    limit: str
    replicas: Literal[0, 1]
    rate: str
    flush: Sequence[Literal["requeue", "failure", "cancel"]]
    load_from: Path | None


class Logs(TypedDict, total=False):
    """`logs`: where the output of workers goes."""

    per: Literal["rank", "node"]
    tee: Any
    redirects: Any
    local_ranks_filter: Sequence[int] | None
    prefix: str
    duplicate_stdout_filters: Sequence[str]
    duplicate_stderr_filters: Sequence[str]
    max_size: str | None


class Metrics(TypedDict, total=False):
    """`metrics`: numbers for monitoring."""

    textfile: Path | None
    comment: bool | None


class Stage(TypedDict, total=False):
    """`stage`: a copy to the node's own disk."""

    source: Path
    target: Path
    timeout: Duration


class Container(TypedDict, total=False):
    """`container`: the image that agents and workers run in."""

    runtime: Literal["pyxis", "apptainer", "command"]
    image: str
    command: str
    mounts: Sequence[str]
    env: Sequence[str]


class HealthChecks(TypedDict, total=False):
    """`health`: the checks of a node before it joins; each is on, off, or the time that it may take."""

    run_directory: bool | Duration
    scratch: bool | Duration
    memory: bool | Duration
    gpus: bool | Duration
    interface: bool | Duration
    cpus: bool | Duration
    leftovers: bool | Duration


class Role(TypedDict, total=False):
    """One of `roles`: workers that run the same, on nodes of their own."""

    name: str
    entrypoint: Entrypoint
    nodes: int | Nodes
    workers_per_node: int | str | Sequence[int]
    restart: Literal["restart_all", "restart_role", "ignore"]
    env: Mapping[str, Scalar | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job. The fields are the keys of job.yaml, and mean what they mean there."""

    name: str | None = None
    site: Path | None = None
    nodes: int | Nodes | None = None
    spares: int | None = None
    workers_per_node: int | str | Sequence[int] | None = None
    resources: Resources | None = None
    time: Duration | None = None
    setup: Sequence[str] | None = None
    entrypoint: Entrypoint | None = None
    roles: Sequence[Role] | None = None
    workdir: Path | None = None
    snapshot: bool | None = None
    python: Path | None = None
    env: Mapping[str, Scalar | None] | None = None
    worker_env: WorkerEnv | None = None
    role: str | None = None
    restart: Restart | None = None
    progress: Progress | None = None
    elastic: Elastic | None = None
    signals: Signals | None = None
    stall_timeout: Duration | None = None
    start_timeout: Duration | None = None
    requeue: Requeue | None = None
    state: TrainingState | None = None
    start: Literal["auto", "fork", "spawn"] | None = None
    preload: Sequence[str] | None = None
    logs: Logs | None = None
    log_level: Literal["error", "warning", "info", "debug"] | None = None
    metrics: Metrics | None = None
    binding: Literal["none", "numa", "cores", "nearest"] | None = None
    virtual_local_rank: bool | None = None
    stage: Stage | None = None
    health: HealthChecks | None = None
    container: Container | None = None
    template: Path | None = None
    sbatch: Mapping[str, Scalar | None] | None = None

    def keys(self) -> dict[str, Any]:
        """Return the keys that are given, with their values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
