"""Turns job and site into a LaunchPlan: every default and every limit is applied here, once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from hpc_elastic.errors import JobError
from hpc_elastic.hostlist import MOST_HOSTS
from hpc_elastic.job.conflicts import check_entrypoint, find_conflicts
from hpc_elastic.job.defaults import DEFAULTS, ROLE_DEFAULTS, default_grace, default_lead
from hpc_elastic.job.problems import format_path
from hpc_elastic.job.roles import check_roles
from hpc_elastic.job.spec import (
    EntrypointSpec,
    HealthSpec,
    JobSpec,
    MetricsSpec,
    ProgressSpec,
    RoleSpec,
    SignalsSpec,
    StateSpec,
)
from hpc_elastic.plan.container import ContainerPlan, MountPlan
from hpc_elastic.plan.health import HEALTH_CHECKS
from hpc_elastic.plan.launch_plan import (
    FORMAT_VERSION,
    BackoffPlan,
    ElasticPlan,
    LaunchPlan,
    NetworkPlan,
    RequeuePlan,
    ResourcesPlan,
    RestartPlan,
    SignalsPlan,
    SnapshotPlan,
    StatePlan,
)
from hpc_elastic.plan.references import expand_references, has_reference, quote_dollars
from hpc_elastic.plan.roles import EntrypointKind, EntrypointPlan, NodesPlan, RolePlan
from hpc_elastic.resolve.container import (
    IMAGE_PYTHON,
    check_container,
    find_unmountable,
    is_contained,
    own_mounts,
    resolve_container,
)
from hpc_elastic.resolve.limits import JobRequest, find_excess, find_missing
from hpc_elastic.resolve.logs import resolve_env, resolve_logs
from hpc_elastic.resolve.merge import merge_sections, without_rivals
from hpc_elastic.resolve.resources import remaining_options, resolve_resources, resolve_workers
from hpc_elastic.resolve.stage import check_stage, resolve_stage
from hpc_elastic.site.config import BY_SWITCH, NetworkConfig, SiteConfig
from hpc_elastic.stage_variables import IN_STAGE, STAGE_VARIABLE
from hpc_elastic.units import format_duration, parse_size

T = TypeVar("T")
MOST_LOCAL_NODES = 252  # each has a loopback address of its own, 127.0.0.2 and on (`scheduler.allocation`)
RUN_SNAPSHOT = "{}/snapshot"  # as `RunLayout.snapshot`, which is not of this layer
LEAST_NODE_LOSSES = 64  # default of survived node losses; a larger run survives as many as it has nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionContext:
    """The values that are known only when a run is made.

    `job_dir` is the folder of the job file, `interpreter` the Python that submits, `created` a time in UTC.
    `shell_options` are options that sbatch takes from the shell's variables, such as `account` from SBATCH_ACCOUNT.
    `snapshot_dir` is where a snapshot of the code would be; None: in the run directory.
    `is_allocated`: the nodes are there already, so nothing is asked of a partition.
    """

    run: str
    run_dir: str
    job_dir: str
    created: str
    interpreter: str
    package_dir: str
    package_version: str
    shell_options: Mapping[str, str] = field(default_factory=dict)
    is_allocated: bool = False
    snapshot_dir: str | None = None


def resolve_plan(job: JobSpec, site: SiteConfig, submission: SubmissionContext) -> LaunchPlan:
    """Decide every value of a run: the job's, else the site's, else the package's default.

    Raises:
        JobError: job and site contradict each other; the error holds all problems, one on each line.
    """
    roles = _role_specs(asked := merge_sections(job, without_rivals(site.defaults, job)))
    conflicts, limits = list(_conflicts(asked, roles, job, site)), list(_limits(job, asked, roles, site))
    _refuse([*conflicts, *limits] if conflicts else [], site)
    spec = merge_sections(asked, DEFAULTS)
    plans = tuple(_role(role, spec) for role in roles)
    nodes = _nodes(plans, spec)
    resources = resolve_resources(spec, site, max(role.most_workers_on_a_node for role in plans))
    _refuse([*limits, *_excess(spec, nodes, resources, site, submission)], site)
    return LaunchPlan(
        format_version=FORMAT_VERSION,
        run=submission.run,
        name=spec.name,
        run_dir=submission.run_dir,
        created=submission.created,
        package_dir=submission.package_dir,
        package_version=submission.package_version,
        site=site.name,
        scheduler=site.scheduler,
        template=spec.template or site.template or f"{site.scheduler}/job.sh.j2",
        nodes=nodes,
        roles=plans,
        resources=resources,
        time_s=_seconds(spec.time),
        setup=spec.setup or (),
        workdir=_workdir(spec, submission),
        python=_python(spec, submission),
        env=resolve_env(spec.env or {}),
        worker_env_slurm=_known(_known(spec.worker_env).slurm),
        restart=_restart(spec, nodes),
        progress_file=(spec.progress or ProgressSpec()).file,
        elastic=_elastic(spec),
        signals=_signals(_known(spec.signals), asked.signals or SignalsSpec(), spec.time),
        stall_timeout_s=_seconds(spec.stall_timeout),
        start_timeout_s=_seconds(spec.start_timeout),
        requeue=RequeuePlan(max=_known(_known(spec.requeue).max), on=_known(_known(spec.requeue).on), by=site.requeue),
        state=_state(_known(spec.state), site, submission.job_dir),
        start=_known(spec.start),
        preload=spec.preload or (),
        logs=resolve_logs(asked, most_ranks=sum(role.nodes.max * role.most_workers_on_a_node for role in plans)),
        log_level=_known(spec.log_level),
        metrics_textfile=_textfile(spec.metrics, submission.job_dir),
        metrics_comment=spec.metrics is not None and bool(spec.metrics.comment),
        binding=_known(spec.binding),
        virtual_local_rank=_known(spec.virtual_local_rank),
        network=_network(site.network),
        sbatch=_gang_start(job, site) | remaining_options(spec),
        health=_health(_known(spec.health)),
        scratch=site.scratch,
        srun=site.srun,
        container=_container(spec, site, submission),
        host_python=submission.interpreter if _has_own_python(spec) else None,
        stage=resolve_stage(spec, site, submission.job_dir),
        snapshot=_snapshot(spec, submission),
    )


def _container(spec: JobSpec, site: SiteConfig, submission: SubmissionContext) -> ContainerPlan | None:
    """Return how agents get into an image; None where they run on the node itself.

    Raises:
        JobError: a path of the run's own cannot be mounted.
    """
    if spec.container is None or not is_contained(spec):
        return None
    textfile = _textfile(spec.metrics, submission.job_dir)
    other = _state(_known(spec.state), site, submission.job_dir).load_from
    files = [*([os.path.dirname(textfile)] if textfile else []), *([quote_dollars(other)] if other else [])]
    own = list(
        own_mounts(
            run_dir=submission.run_dir,
            package_dir=submission.package_dir,
            workdir=_workdir(spec, submission),
            files=files,
            scratch=site.scratch,
        )
    )
    _refuse(list(find_unmountable(own)), site)
    if spec.stage is not None and spec.stage.source is not None:
        staged = f"${{{STAGE_VARIABLE}}}"
        own.append(MountPlan(source=staged, target=staged, is_read_only=True, is_optional=True))
    return resolve_container(spec.container, job_dir=submission.job_dir, own=own)


def _nodes(roles: Sequence[RolePlan], spec: JobSpec) -> NodesPlan:
    least, most = sum(role.nodes.min for role in roles), sum(role.nodes.max for role in roles)
    return NodesPlan(min=least, max=most, spares=_known(spec.spares))


def _refuse(problems: Sequence[str], site: SiteConfig) -> None:
    if problems:
        raise JobError(problems, tip=f"the defaults and limits of site {site.name} were taken into account")


def _known(value: T | None) -> T:
    """Return a value that cannot be None, because the parser or DEFAULTS has set it."""
    if value is None:
        raise TypeError("a key without a value after the defaults: DEFAULTS lacks it")
    return value


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def _role_specs(asked: JobSpec) -> tuple[RoleSpec, ...]:
    """Return every role with all its defaults; a job without roles counts as one role."""
    lower = RoleSpec(nodes=asked.nodes, workers_per_node=asked.workers_per_node)
    if asked.roles is None:
        name = asked.role or _known(DEFAULTS.role)
        roles: tuple[RoleSpec, ...] = (RoleSpec.model_construct(name=name, entrypoint=asked.entrypoint),)
    else:
        roles = asked.roles
    merged = (merge_sections(merge_sections(role, lower), ROLE_DEFAULTS) for role in roles)
    # A null in a role's env is kept: it removes a variable of the job's own env.
    return tuple(role.model_copy(update={"env": given.env}) for role, given in zip(merged, roles, strict=True))


def _conflicts(asked: JobSpec, roles: Sequence[RoleSpec], job: JobSpec, site: SiteConfig) -> Iterator[str]:
    """Yield the conflicts that a site's defaults cause; the job alone was checked when it was parsed."""
    work = check_entrypoint(asked.entrypoint) if asked.roles is None else check_roles(roles)
    for conflict in (*work, *find_conflicts(asked)):
        yield f"{format_path(conflict.path)}: {conflict.message}"
    yield from check_container(asked, job, site)
    yield from check_stage(asked, site)
    if asked.snapshot and has_reference(asked.workdir or ""):
        yield f"snapshot: workdir is {asked.workdir}, which is known on the nodes only; leave one of them out"
    if asked.metrics is not None and asked.metrics.comment and (asked.sbatch or {}).get("comment") is not None:
        yield "metrics.comment: it would replace the comment that sbatch.comment gives; leave one of them out"
    elastic = asked.elastic  # checked here, because a site may have a default of either key
    if elastic is not None and elastic.after_exit_timeout == "succeed" and elastic.exit_timeout is None:
        why = "without it nobody is stopped while ranks still run"
        yield f"elastic.after_exit_timeout: expected elastic.exit_timeout beside it: {why}"


def _limits(job: JobSpec, asked: JobSpec, roles: Sequence[RoleSpec], site: SiteConfig) -> Iterator[str]:
    nodes = sum(_known(role.nodes).max for role in roles) + (asked.spares or 0)
    key = "nodes" if asked.roles is None else "roles"
    if nodes > (MOST_LOCAL_NODES if site.scheduler == "local" else MOST_HOSTS):
        most = f"{MOST_LOCAL_NODES} on this machine" if site.scheduler == "local" else f"{MOST_HOSTS}"
        yield f"{key}: expected at most {most}, found {nodes}"
    elif site.max_nodes is not None and nodes > site.max_nodes:
        yield f"{key}: expected at most {site.max_nodes}, which is max_nodes of site {site.name}, found {nodes}"
    if site.max_time is not None and asked.time is not None and asked.time > site.max_time:
        limit = f"expected at most {format_duration(site.max_time)}, which is max_time of site {site.name}"
        yield f"time: {limit}, found {format_duration(asked.time)}"
    if site.max_time is not None and job.time is None and "time" in job.model_fields_set:
        limit = f"expected at most {format_duration(site.max_time)}, which is max_time of site {site.name}"
        yield f"time: {limit}, found null, which asks for no limit of its own"


def _excess(
    spec: JobSpec, nodes: NodesPlan, resources: ResourcesPlan, site: SiteConfig, submission: SubmissionContext
) -> Iterator[str]:
    """Yield what is beyond the limits of the job's partition and QOS, and what the site requires and is missing."""
    if submission.is_allocated:
        return
    request = JobRequest(
        least_nodes=nodes.min + nodes.spares,
        most_nodes=nodes.max + nodes.spares,
        has_roles=spec.roles is not None,
        time=spec.time,
        resources=resources,
        sbatch={**submission.shell_options, **remaining_options(spec)},
    )
    yield from find_excess(request, site)
    yield from find_missing(request, site)


def _role(role: RoleSpec, spec: JobSpec) -> RolePlan:
    nodes = _known(role.nodes)
    return RolePlan(
        name=_known(role.name),
        entrypoint=_entrypoint(_known(role.entrypoint)),
        nodes=NodesPlan(min=nodes.min, max=nodes.max),
        workers_per_node=resolve_workers(spec, role.workers_per_node),
        restart=_known(role.restart),
        env=role.env or {},
    )


def _entrypoint(entrypoint: EntrypointSpec) -> EntrypointPlan:
    kinds: tuple[EntrypointKind, ...] = ("script", "module", "command", "function")
    kind = next(kind for kind in kinds if getattr(entrypoint, kind) is not None)
    return EntrypointPlan(
        kind=kind,
        target=getattr(entrypoint, kind),
        args=entrypoint.args or (),
        restart_args=entrypoint.restart_args or (),
    )


def _textfile(metrics: MetricsSpec | None, job_dir: str) -> str | None:
    return None if metrics is None or metrics.textfile is None else _node_path(metrics.textfile, job_dir)


def _node_path(path: str, job_dir: str) -> str:
    """Return an absolute path, in which variables stay as they are."""
    if path.startswith("${"):
        return path
    joined = os.path.join(quote_dollars(job_dir), path)
    return joined if has_reference(path) else os.path.normpath(joined)


def _state(state: StateSpec, site: SiteConfig, job_dir: str) -> StatePlan:
    return StatePlan(
        limit_percent=int(_known(state.limit).removesuffix("%")),
        replicas=1 if _known(state.replicas) else 0,
        rate=parse_size(_known(state.rate)),
        domains=() if site.failure_domains == BY_SWITCH else site.failure_domains,
        is_by_switch=site.failure_domains == BY_SWITCH,
        flush=_known(state.flush),
        load_from=None if state.load_from is None else os.path.abspath(os.path.join(job_dir, state.load_from)),
    )


def _snapshot(spec: JobSpec, submission: SubmissionContext) -> SnapshotPlan | None:
    if not spec.snapshot:
        return None
    source = expand_references(_node_path(_known(spec.workdir), submission.job_dir), {})
    return SnapshotPlan(source=source, directory=submission.snapshot_dir or RUN_SNAPSHOT.format(submission.run_dir))


def _workdir(spec: JobSpec, submission: SubmissionContext) -> str:
    snapshot = _snapshot(spec, submission)
    workdir = _node_path(_known(spec.workdir), submission.job_dir)
    return workdir if snapshot is None else quote_dollars(snapshot.directory)


def _has_own_python(spec: JobSpec) -> bool:
    """Return whether the workers' Python is not on the node of the script: it is in an image, or in what is staged."""
    return is_contained(spec) or (spec.python or "").startswith(IN_STAGE)


def _python(spec: JobSpec, submission: SubmissionContext) -> str:
    """Keep a bare name, which is searched for after setup; make a path relative to the job file's folder absolute."""
    python = spec.python or (IMAGE_PYTHON if is_contained(spec) else submission.interpreter)
    is_relative = os.sep in python and not python.startswith(IN_STAGE)
    return os.path.normpath(os.path.join(submission.job_dir, python)) if is_relative else python


def _restart(spec: JobSpec, nodes: NodesPlan) -> RestartPlan:
    restart = _known(spec.restart)
    backoff, losses = _known(restart.backoff), restart.max_node_losses
    return RestartPlan(
        max_restarts=_known(restart.max_restarts),
        backoff=BackoffPlan(
            first_s=_known(backoff.first).total_seconds(),
            factor=_known(backoff.factor),
            max_s=_known(backoff.max).total_seconds(),
        ),
        no_progress_limit=_known(restart.no_progress_limit),
        max_node_losses=max(LEAST_NODE_LOSSES, nodes.max) if losses is None else losses,
    )


def _elastic(spec: JobSpec) -> ElasticPlan:
    elastic = _known(spec.elastic)
    return ElasticPlan(
        join_timeout_s=_known(elastic.join_timeout).total_seconds(),
        join_retries=_known(elastic.join_retries),
        lease_s=_known(elastic.lease).total_seconds(),
        exit_timeout_s=_seconds(elastic.exit_timeout),
        rejoin=_known(elastic.rejoin),
        after_exit_timeout=_known(elastic.after_exit_timeout),
    )


def _signals(signals: SignalsSpec, asked: SignalsSpec, time: timedelta | None) -> SignalsPlan:
    """Resolve the signals: a short time limit shortens the defaults of lead and grace; given values are kept."""
    lead = default_lead(time) if asked.lead is None else asked.lead
    grace = default_grace(lead) if asked.grace is None else asked.grace
    return SignalsPlan(
        notice=signals.notice or "",
        lead_s=lead.total_seconds(),
        grace_s=grace.total_seconds(),
        restart_grace_s=_known(signals.restart_grace).total_seconds(),
    )


def _health(health: HealthSpec) -> dict[str, float]:
    """Return the time limits, in seconds, of the health checks that are switched on."""
    given = {name: getattr(health, name) for name in HEALTH_CHECKS}
    limits = {name: HEALTH_CHECKS[name] if value is True else value for name, value in given.items()}
    return {
        name: limit.total_seconds() if isinstance(limit, timedelta) else limit
        for name, limit in limits.items()
        if limit
    }


def _gang_start(job: JobSpec, site: SiteConfig) -> dict[str, str]:
    """Return the option by which Slurm waits for all nodes to boot before the job starts, if the site sets it.

    The job's own `sbatch` map overrides it, and null there removes it.
    """
    is_asked = "wait-all-nodes" in (job.sbatch or {})
    return {} if is_asked or site.wait_all_nodes is None else {"wait-all-nodes": str(int(site.wait_all_nodes))}


def _network(network: NetworkConfig) -> NetworkPlan:
    given = {name: value for name, value in network.model_dump().items() if value is not None}
    return NetworkPlan(**given)
