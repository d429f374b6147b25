"""Launch plans for tests that need one and look at little of it."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from hpc_elastic.plan.launch_plan import (
    BackoffPlan,
    ElasticPlan,
    LaunchPlan,
    LogsPlan,
    NetworkPlan,
    RequeuePlan,
    ResourcesPlan,
    RestartPlan,
    SignalsPlan,
)
from hpc_elastic.plan.roles import EntrypointPlan, NodesPlan, RolePlan

_ENTRYPOINT = EntrypointPlan(kind="script", target="/home/ada/digits/train.py", args=("--epochs", "20"))
_PLAN = LaunchPlan(
    format_version=1,
    run="digits-20260102-030405-0f0f",
    name="digits",
    run_dir="/home/ada/hpc-elastic-runs/digits-20260102-030405-0f0f",
    created="2026-01-02T03:04:05.000000Z",
    package_dir="/opt/hpc_elastic/lib/python3.11/site-packages/hpc_elastic",
    package_version="0.1.0",
    site="generic-slurm",
    scheduler="slurm",
    template="slurm/job.sh.j2",
    nodes=NodesPlan(min=2, max=2),
    roles=(),
    resources=ResourcesPlan(),
    time_s=None,
    setup=(),
    workdir="/home/ada/digits",
    python="python3",
    env={},
    worker_env_slurm="hide",
    restart=RestartPlan(
        max_restarts=3,
        backoff=BackoffPlan(first_s=0.0, factor=2.0, max_s=60.0),
        no_progress_limit=3,
        max_node_losses=64,
    ),
    progress_file=None,
    elastic=ElasticPlan(join_timeout_s=600.0, join_retries=3, lease_s=10.0, exit_timeout_s=None, rejoin="at_restart"),
    signals=SignalsPlan(notice="USR2", lead_s=120.0, grace_s=60.0, restart_grace_s=5.0),
    stall_timeout_s=None,
    requeue=RequeuePlan(max=5, on=("preempted", "time_limit", "node_loss")),
    start="auto",
    preload=(),
    logs=LogsPlan(per="rank", tee_ranks=(0,)),
    log_level="info",
    network=NetworkPlan(),
    sbatch={},
)


def make_plan(
    *,
    roles: tuple[RolePlan, ...] | None = None,
    nodes: NodesPlan | None = None,
    entrypoint: EntrypointPlan | None = None,
    workers_per_node: int | tuple[int, ...] = 2,
    role: str = "default",
    **changes: Any,
) -> LaunchPlan:
    """Return a plan for two nodes of Slurm, with these changes; without `roles`, one role on all nodes."""
    nodes = nodes or NodesPlan(
        min=sum(role.nodes.min for role in roles or ()) or 2, max=sum(role.nodes.max for role in roles or ()) or 2
    )
    only = make_role(role, nodes, workers_per_node, **({"entrypoint": entrypoint} if entrypoint else {}))
    return dataclasses.replace(_PLAN, nodes=nodes, roles=roles or (only,), **changes)


def make_local_plan(**changes: Any) -> LaunchPlan:
    """Return the same plan for this machine as the scheduler."""
    return make_plan(**{"site": "local", "scheduler": "local", "template": "local/job.sh.j2", **changes})


def make_role(
    name: str = "default",
    nodes: NodesPlan | int = 2,
    workers_per_node: int | tuple[int, ...] = 2,
    *,
    entrypoint: EntrypointPlan = _ENTRYPOINT,
    **more: Any,
) -> RolePlan:
    """Return a role on so many nodes."""
    counts = NodesPlan(min=nodes, max=nodes) if isinstance(nodes, int) else nodes
    counts = dataclasses.replace(counts, spares=0)
    return RolePlan(name=name, nodes=counts, workers_per_node=workers_per_node, entrypoint=entrypoint, **more)


def make_run_plan(run_dir: str | os.PathLike[str], **changes: Any) -> LaunchPlan:
    """A plan for one worker on one node, whose run directory is this."""
    small: dict[str, Any] = {
        "package_dir": "/opt/hpc_elastic",
        "nodes": NodesPlan(min=1, max=1),
        "workers_per_node": 1,
        "workdir": "/",
    }
    return make_plan(**{"run": "run", "name": "run", "run_dir": os.fspath(run_dir), **small, **changes})
