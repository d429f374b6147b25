"""A launch plan for tests that need one and look at little of it."""

from __future__ import annotations

import os

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


def a_plan(run_dir: str | os.PathLike[str], *, sbatch: dict[str, str | None] | None = None) -> LaunchPlan:
    return LaunchPlan(
        format_version=1,
        run="run",
        name="run",
        run_dir=os.fspath(run_dir),
        created="2026-01-01T00:00:00.000000Z",
        package_dir="/opt/hpc_elastic",
        package_version="0",
        site="generic-slurm",
        scheduler="slurm",
        template="slurm/job.sh.j2",
        nodes=NodesPlan(min=1, max=1),
        workers_per_node=1,
        resources=ResourcesPlan(),
        time_s=None,
        setup=(),
        entrypoint=EntrypointPlan(kind="script", target="train.py"),
        workdir="/",
        python="python3",
        env={},
        worker_env_slurm="hide",
        role="default",
        restart=RestartPlan(max_restarts=3, backoff=BackoffPlan(first_s=0, factor=2, max_s=60), no_progress_limit=3),
        progress_file=None,
        elastic=ElasticPlan(join_timeout_s=600, join_retries=3, lease_s=10, exit_timeout_s=None, rejoin="at_restart"),
        signals=SignalsPlan(notice="USR2", lead_s=120, grace_s=60, restart_grace_s=5),
        stall_timeout_s=None,
        requeue=RequeuePlan(max=5, on=()),
        start="auto",
        preload=(),
        logs=LogsPlan(per="rank", tee=(0,), max_size_bytes=None),
        log_level="info",
        network=NetworkPlan(),
        sbatch=sbatch or {},
    )
