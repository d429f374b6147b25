"""What the user asked for: every key of job.yaml, what it means and what may stand there.

None, or a key that is not in `model_fields_set`, is a key that was not given; a key that is in the set
and None was given as null, which takes a site's default away. No default is applied here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from hpc_elastic.job import values


class Section(BaseModel):
    """A map with known keys; any other key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _key(description: str) -> Any:
    """Return the field of a key that may be left out or be null."""
    return Field(default=None, description=description)


class NodesSpec(Section):
    """How many nodes the job may run on."""

    min: values.Positive = Field(description="the run starts, and goes on, with at least so many nodes")
    max: values.Positive = Field(description="the run uses at most so many nodes")


class ResourcesSpec(Section):
    """What is asked for on every node; the site says by which options."""

    gpus_per_node: values.Count | None = _key("GPUs of a node")
    cpus_per_worker: values.Positive | None = _key("CPUs of a worker; a node gets workers x cpus_per_worker")
    memory_per_node: values.Memory | None = _key("memory of a node, such as 64G; 0 is all of it")
    exclusive: values.Switch | None = _key("whole nodes, shared with no other job")


class EntrypointSpec(Section):
    """What a worker runs: exactly one of script, module and command; a function comes from Python only."""

    script: values.Program | None = _key("a Python file, relative to workdir")
    module: values.Program | None = _key("a Python module, as for python -m")
    command: values.Program | None = _key("a program, found in PATH or relative to workdir")
    function: values.Program | None = _key(
        "a Python function, module:name, which only hpc_elastic.submit can hand over"
    )
    args: tuple[values.Argument, ...] | None = _key("its arguments; ${NAME} expands on the node, $$ is a $")
    restart_args: tuple[values.Argument, ...] | None = _key(
        "more arguments behind args from the second attempt on, for a script whose resume is an option"
    )


class WorkerEnvSpec(Section):
    """What workers see of the environment that Slurm gives to the agent."""

    slurm: Literal["hide", "keep", "rank"] | None = _key(
        "task-level SLURM_*, PMI* and PMIX* variables: hidden, kept, or rewritten from the world"
    )


class BackoffSpec(Section):
    """The pause before a restart."""

    first: values.Duration | None = _key("before the first restart")
    factor: values.Factor | None = _key("every further pause is longer by this factor")
    max: values.Duration | None = _key("no pause is longer")


class RestartSpec(Section):
    """When the workers start again after a failure."""

    max_restarts: values.Count | None = _key("worker failures that the whole run survives, requeues included")
    backoff: BackoffSpec | None = _key("the pause before a restart")
    no_progress_limit: values.Positive | None = _key(
        "the same failure so often with no progress between them ends the run"
    )
    max_node_losses: values.Count | None = _key(
        "lost nodes that the whole run survives, requeues included; the larger of 64 and nodes.max by default"
    )


class ProgressSpec(Section):
    """How progress is seen."""

    file: values.FilePath | None = _key("a glob, relative to workdir; a change of its files is progress")


class ElasticSpec(Section):
    """How nodes come and go."""

    join_timeout: values.PositiveDuration | None = _key("wait so long for nodes that are missing")
    join_retries: values.Count | None = _key("how often a join that failed is tried again")
    lease: values.Lease | None = _key("an agent that was silent for so long is taken for lost")
    exit_timeout: values.PositiveDuration | None = _key("once a rank ended well, the others have so long")
    after_exit_timeout: Literal["fail", "succeed"] | None = _key(
        "how a run ends whose ranks still run when exit_timeout is over: failed, or successfully as with torchrun"
    )
    rejoin: Literal["at_restart", "immediately"] | None = _key(
        "when a node that came late or came back is taken in: at the next restart, or in one made for it at once"
    )


class SignalsSpec(Section):
    """How workers are told to stop, and how long they have."""

    notice: values.SignalName | None = _key("a signal at a notice, for rank processes that have a handler for it")
    lead: values.Duration | None = _key("the notice comes so long before the time limit")
    grace: values.Duration | None = _key("time between TERM and KILL when the run stops")
    restart_grace: values.Duration | None = _key("time between TERM and KILL when a failure restarts the workers")


class RequeueSpec(Section):
    """When Slurm is asked to start the job again."""

    max: values.Count | None = _key("how often")
    on: tuple[Literal["preempted", "time_limit", "node_loss"], ...] | None = _key("after which causes")


class StateSpec(Section):
    """Training states that are kept in memory."""

    limit: values.Percent | None = _key("the share of a node's memory that the states of all its ranks may take")
    replicas: values.Replicas | None = _key("how many copies of each rank's states are kept on another node")
    rate: values.Rate | None = _key("a node sends copies of its states with at most so many bytes a second, as 500M")
    flush: tuple[Literal["requeue", "failure", "cancel"], ...] | None = _key(
        "after which ends the newest state is written to the run directory: the job starts again, the run failed, a"
        " person ended it"
    )
    load_from: values.FilePath | None = _key(
        "the run directory of another run, with whose state the first attempt begins; relative to job.yaml"
    )


class LogsSpec(Section):
    """Where the output of workers goes."""

    per: Literal["rank", "node"] | None = _key(
        "logs of their own for each rank, or one log a node; default: rank, from 1,000 ranks on node"
    )
    tee: values.Tee | None = _key(
        "what the agent's log repeats: a list of global ranks, or out, err, both, none (also 0-3),"
        " or these by local rank as in 0:3,1:2"
    )
    redirects: values.Redirects | None = _key(
        "what goes to files instead of the agent's log: out, err, both, none (also 0-3), or these by local rank"
    )
    local_ranks_filter: Annotated[tuple[values.Count, ...], Field(min_length=1)] | None = _key(
        "the agent's log shows the output of these local ranks only"
    )
    prefix: values.LogPrefix | None = _key(
        "what stands before each repeated line; ${role_name}, ${local_rank}, ${rank}, ${node}, ${attempt}"
    )
    duplicate_stdout_filters: tuple[values.Line, ...] | None = _key(
        "repeated lines of standard output with one of these texts also go to a file of their own"
    )
    duplicate_stderr_filters: tuple[values.Line, ...] | None = _key(
        "repeated lines of standard error with one of these texts also go to a file of their own"
    )
    max_size: values.LogSize | None = _key(
        "the most that a log of a rank may take, its earlier part included, or a node's log for each of its ranks;"
        " the end of it is kept"
    )


class MetricsSpec(Section):
    """Numbers for monitoring."""

    textfile: values.NodePath | None = _key(
        "a file in the Prometheus text format, relative to job.yaml; ${NAME} expands on the node, $$ is a $"
    )
    comment: bool | None = _key("the job's comment in Slurm says how the run goes, anew every five minutes")


class StageSpec(Section):
    """A copy to the node's own disk before the agent starts."""

    source: values.NodePath | None = _key(
        "what is copied, relative to job.yaml: a folder, a file, a tar archive or squashfs image, which are unpacked"
    )
    target: values.NodePath | None = _key(
        "the folder for copies on the node's own disk; ${NAME} expands on the node; the site's scratch by default"
    )
    timeout: values.PositiveDuration | None = _key("a copy that takes longer makes its node unhealthy")


class HealthSpec(Section):
    """The health checks of a node: each is true, false, or the time that it may take."""

    run_directory: values.HealthCheck | None = _key("write, fsync and read back in the run directory")
    scratch: values.HealthCheck | None = _key(
        "the same, and room, in local scratch: the site's scratch, else TMPDIR, else /tmp"
    )
    memory: values.HealthCheck | None = _key("as much memory is available as the job asks for")
    gpus: values.HealthCheck | None = _key("GPUs answer, and have no memory pages or rows to be retired or remapped")
    interface: values.HealthCheck | None = _key("the interfaces that the site names are there and up")
    cpus: values.HealthCheck | None = _key("the agent may use all CPUs of its step")
    leftovers: values.HealthCheck | None = _key("no rank of an earlier run of this user holds a GPU of the step")


class ContainerSpec(Section):
    """The image that agents and workers run in."""

    runtime: Literal["pyxis", "apptainer", "command"] | None = _key(
        "what starts it: srun's options of pyxis, apptainer exec, or the program of container.command"
    )
    image: values.NodePath | None = _key(
        "the image, as the runtime names it; a path is relative to job.yaml; ${NAME} expands outside of the image"
    )
    command: values.Program | None = _key(
        "with the runtime command: a program that gets the agent's command line as arguments, and runs it in the image"
    )
    mounts: tuple[values.Mount, ...] | None = _key(
        "what the image sees beside the run directory and workdir: SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro"
    )
    env: tuple[values.VariableName, ...] | None = _key(
        "variables that cross over into the image, beside those of Slurm, the run and the GPUs"
    )


_NODES_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {
            "type": "object",
            "properties": {
                name: {"type": "integer", "minimum": 1, "description": field.description}
                for name, field in NodesSpec.model_fields.items()
            },
            "required": ["min", "max"],
            "additionalProperties": False,
        },
    ]
}


_Nodes: TypeAlias = Annotated[NodesSpec, values.number_as_map("min", "max"), WithJsonSchema(_NODES_SCHEMA)]


class RoleSpec(Section):
    """One of several roles: workers that run the same, on nodes of their own."""

    name: values.Name | None = _key("the role's name, which its workers are told; no two roles have the same")
    entrypoint: EntrypointSpec | None = _key("what a worker of this role runs: exactly one of script, module, command")
    nodes: _Nodes | None = _key("how many nodes this role has: one number, or {min: 3, max: 4}")
    workers_per_node: values.Workers | None = _key(
        "workers of a node: auto (gpus_per_node, else 1), a number, or a list with a number for each node of the role"
    )
    restart: Literal["restart_all", "restart_role", "ignore"] | None = _key(
        "what a failure in this role restarts: every worker of the run, the role's own workers, or nothing"
    )
    env: Mapping[values.VariableName, values.VariableValue | None] | None = _key(
        "more environment variables of this role's workers, on top of the job's env; null takes one of those away"
    )


class JobDefaults(Section):
    """The keys of job.yaml for which a site may have a default."""

    nodes: _Nodes | None = _key("how many nodes: one number, or {min: 3, max: 4}")
    spares: values.Count | None = _key("so many more nodes, which wait to replace lost ones")
    workers_per_node: values.Workers | None = _key(
        "workers of a node: auto (gpus_per_node, else 1), a number, or a list with a number for each node"
    )
    resources: ResourcesSpec | None = _key("what is asked for on every node")
    time: values.PositiveDuration | None = _key("the time limit: 90m, 2h30m, 12:00:00, 1-12:00:00")
    setup: tuple[values.ShellLine, ...] | None = _key("shell lines that run before the workers start, as they are")
    workdir: values.NodePath | None = _key(
        "where workers start, relative to job.yaml; ${NAME} expands on the node, $$ is a $"
    )
    snapshot: values.Switch | None = _key(
        "workers run from a copy of the files that git tracks in workdir, made at the submission"
    )
    python: values.Program | None = _key("the Python of the workers, found after setup")
    env: Mapping[values.VariableName, values.VariableValue | None] | None = _key(
        "environment variables of the workers; ${NAME} expands on the node, $$ is a $; null takes a default away"
    )
    worker_env: WorkerEnvSpec | None = _key("what workers see of Slurm's environment")
    role: values.Line | None = _key("the role that workers are told")
    restart: RestartSpec | None = _key("when the workers start again after a failure")
    progress: ProgressSpec | None = _key("how progress is seen")
    elastic: ElasticSpec | None = _key("how nodes come and go")
    signals: SignalsSpec | None = _key("how workers are told to stop")
    stall_timeout: values.PositiveDuration | None = _key(
        "a rank without a heartbeat for so long, after its first one, has failed"
    )
    start_timeout: values.PositiveDuration | None = _key(
        "a rank without a first heartbeat so long after its start has failed"
    )
    requeue: RequeueSpec | None = _key("when Slurm is asked to start the job again")
    state: StateSpec | None = _key("training states that are kept in memory")
    start: Literal["auto", "fork", "spawn"] | None = _key(
        "how worker processes are started: as forks of a process that has torch imported, as new ones, or auto"
    )
    preload: tuple[values.ModuleName, ...] | None = _key(
        "modules that are imported once a node, beside torch, before workers are forked"
    )
    logs: LogsSpec | None = _key("where the output of workers goes")
    log_level: Literal["error", "warning", "info", "debug"] | None = _key("how much the agents say")
    metrics: MetricsSpec | None = _key("numbers for monitoring")
    binding: Literal["none", "numa", "cores", "nearest"] | None = _key(
        "the CPUs that a worker is bound to: all, those of a NUMA node (its GPU's), cores there that no other has, "
        "or its part of those nearest to its GPU"
    )
    virtual_local_rank: values.Switch | None = _key(
        "each worker sees its own GPU only, as device 0, and LOCAL_RANK is 0, as by torchrun's --virtual-local-rank"
    )
    stage: StageSpec | None = _key("a copy to the node's own disk before the agent starts: ${HPC_ELASTIC_STAGE}")
    health: HealthSpec | None = _key(
        "the checks of a node before it joins: true, false, or a time limit, as in {gpus: 20s, scratch: false}"
    )
    container: ContainerSpec | None = _key("the image that agents and workers run in")
    template: values.FilePath | None = _key("the template of the batch script: a name or a path")
    sbatch: Mapping[values.OptionName, values.OptionValue | None] | None = _key(
        "more options of sbatch, passed on as they are; null takes a default away"
    )


class JobSpec(JobDefaults):
    """One job, as its file and `--set` say it."""

    name: values.RunName = Field(default="", description="the run's name; the file's name if it is left out")
    site: values.FilePath | None = _key("the name of a site, or the path of a site file")
    entrypoint: EntrypointSpec | None = _key("what a worker runs: exactly one of script, module, command")
    roles: tuple[RoleSpec, ...] | None = _key(
        "several roles, each with entrypoint, nodes and workers_per_node of its own, instead of those keys"
    )
