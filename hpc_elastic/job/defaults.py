"""The default of every key, and the keys whose behaviour is not built yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from hpc_elastic.job.problems import KeyPath
from hpc_elastic.job.spec import (
    BackoffSpec,
    ElasticSpec,
    HealthSpec,
    JobDefaults,
    LogsSpec,
    NodesSpec,
    RequeueSpec,
    ResourcesSpec,
    RestartSpec,
    RoleSpec,
    Section,
    SignalsSpec,
    StateSpec,
    WorkerEnvSpec,
)
from hpc_elastic.plan.health import HEALTH_CHECKS
from hpc_elastic.plan.std_streams import ALL_STREAMS

# Keys that are not here have no default: python is the interpreter that submits, template the site's,
# name the file's name, restart.max_node_losses goes by the number of nodes, and the other keys have no effect
# when they are left out.
DEFAULTS = JobDefaults(
    nodes=NodesSpec(min=1, max=1),
    spares=0,
    workers_per_node="auto",
    resources=ResourcesSpec(exclusive=False),
    workdir=".",
    snapshot=False,
    worker_env=WorkerEnvSpec(slurm="hide"),
    role="default",
    restart=RestartSpec(
        max_restarts=3,
        backoff=BackoffSpec(first=timedelta(0), factor=2.0, max=timedelta(seconds=60)),
        no_progress_limit=3,
    ),
    elastic=ElasticSpec(
        join_timeout=timedelta(minutes=10),
        join_retries=3,
        lease=timedelta(seconds=10),
        after_exit_timeout="fail",
        rejoin="at_restart",
    ),
    signals=SignalsSpec(
        lead=timedelta(minutes=2),
        grace=timedelta(seconds=60),
        restart_grace=timedelta(seconds=5),
    ),
    requeue=RequeueSpec(max=5, on=("preempted", "time_limit", "node_loss")),
    state=StateSpec(limit="40%", replicas=0, rate="500M", flush=("requeue", "failure", "cancel")),
    start="auto",
    logs=LogsSpec(tee=(0,), redirects=ALL_STREAMS, prefix="[${node}:${rank}] "),
    log_level="info",
    binding="none",
    virtual_local_rank=False,
    health=HealthSpec(**{name: timedelta(seconds=limit_s) for name, limit_s in HEALTH_CHECKS.items()}),
)

# A site's default of nodes and workers_per_node, which here is the same as ours, is each role's as well.
ROLE_DEFAULTS = RoleSpec(nodes=DEFAULTS.nodes, workers_per_node=DEFAULTS.workers_per_node, restart="restart_all")

# What may stand at a key whose behaviour is not built yet, beside null: the values for which the package
# behaves as it does today. Delete the line of a key when its behaviour is built.
NOT_BUILT: Mapping[str, tuple[Any, ...]] = {}


def default_lead(time: timedelta | None) -> timedelta:
    """Return how long before the time limit the notice comes: at most half of the time limit."""
    lead = DEFAULTS.signals.lead if DEFAULTS.signals else None
    longest = lead or timedelta(0)
    return min(longest, time / 2) if time else longest


def default_grace(lead: timedelta) -> timedelta:
    """Return how long workers have to stop: at most half of the lead, so that a requeue can follow within it."""
    grace = DEFAULTS.signals.grace if DEFAULTS.signals else None
    return min(grace or timedelta(0), lead / 2)


def find_not_built(spec: Section, not_built: Mapping[str, tuple[Any, ...]] = NOT_BUILT) -> Iterator[KeyPath]:
    """Return the keys of a job or of a site's defaults that ask for what is not built yet."""
    for name, allowed in not_built.items():
        path = name.split(".")
        value: Any = spec
        for part in path:
            value = getattr(value, part, None)
        if value is not None and value not in allowed:
            yield tuple(path)
