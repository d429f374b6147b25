"""Plans for the tests of rendering."""

from __future__ import annotations

import dataclasses
from typing import Any

from hpc_elastic.plan.launch_plan import (
    BackoffPlan,
    ElasticPlan,
    EntrypointPlan,
    LaunchPlan,
    LogsPlan,
    NetworkPlan,
    NodesPlan,
    RequeuePlan,
    ResourcesPlan,
    RestartPlan,
    SignalsPlan,
)

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
    workers_per_node=2,
    resources=ResourcesPlan(),
    time_s=None,
    setup=(),
    entrypoint=EntrypointPlan(kind="script", target="/home/ada/digits/train.py", args=("--epochs", "20")),
    workdir="/home/ada/digits",
    python="python3",
    env={"OMP_NUM_THREADS": "4"},
    worker_env_slurm="hide",
    role="default",
    restart=RestartPlan(max_restarts=3, backoff=BackoffPlan(first_s=0.0, factor=2.0, max_s=60.0), no_progress_limit=3),
    progress_file=None,
    elastic=ElasticPlan(join_timeout_s=600.0, join_retries=3, lease_s=10.0, exit_timeout_s=None, rejoin="at_restart"),
    signals=SignalsPlan(notice="USR2", lead_s=120.0, grace_s=60.0, restart_grace_s=5.0),
    stall_timeout_s=None,
    requeue=RequeuePlan(max=5, on=("preempted", "time_limit", "node_loss")),
    start="auto",
    preload=(),
    logs=LogsPlan(per="rank", tee=(0,), max_size_bytes=None),
    log_level="info",
    network=NetworkPlan(),
    sbatch={},
)


def make_plan(**changes: Any) -> LaunchPlan:
    """A plan for two nodes of Slurm, or what is said of it."""
    return dataclasses.replace(_PLAN, **changes)


def make_local_plan(**changes: Any) -> LaunchPlan:
    """The same for this machine."""
    return make_plan(**{"site": "local", "scheduler": "local", "template": "local/job.sh.j2", **changes})
