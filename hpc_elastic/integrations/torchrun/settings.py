"""Reads and checks torchrun's options for the backend, and builds the launch plan from them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpc_elastic import __version__
from hpc_elastic.membership.timing import TORCHRUN
from hpc_elastic.observe.narrate import NO_LIMIT
from hpc_elastic.plan.launch_plan import (
    FORMAT_VERSION,
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
from hpc_elastic.plan.leases import LONGEST_LEASE_S
from hpc_elastic.plan.roles import EntrypointPlan, NodesPlan, RolePlan
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.slurm.step import find_step_id
from hpc_elastic.units import parse_duration

BACKEND = "hpc-elastic"
OURS = ("dir", "hostname_transform", "interface", "join_timeout", "lease")
# Keys of torch's own backends, and keys that torch sets itself: a command line made for c10d works unchanged.
TORCHS = frozenset(
    {
        *("timeout", "rank", "read_timeout", "is_host", "store_type", "last_call_timeout", "close_timeout"),
        *("heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt"),
    }
)
DEFAULT_DIR = "hpc-elastic-runs"
DEFAULT_JOIN_TIMEOUT_S = 600.0  # torch's own, too
DEFAULT_LEASE_S = 10.0
# No limits here: torchrun's --max-restarts counts failures, on each node its own.
UNBOUNDED = RestartPlan(
    max_restarts=NO_LIMIT,
    backoff=BackoffPlan(first_s=0.0, factor=1.0, max_s=0.0),
    no_progress_limit=NO_LIMIT,
    max_node_losses=NO_LIMIT,
)
TORCHRUNS_SIGNALS = SignalsPlan(notice="USR2", lead_s=0.0, grace_s=30.0, restart_grace_s=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The backend's options; times in seconds. `address` is this node's own, if `--local-addr` gives it."""

    min_nodes: int
    max_nodes: int
    directory: str
    join_timeout_s: float
    lease_s: float
    network: NetworkPlan
    address: str | None = None


def read_settings(
    config: Mapping[str, object], *, min_nodes: int, max_nodes: int, nodes: int, address: str | None = None
) -> Settings:
    """Read the settings from torch's parameters.

    Args:
        config: the values of `--rdzv-conf`.
        min_nodes: the lower bound in `--nnodes`.
        max_nodes: the upper bound in `--nnodes`.
        nodes: how many nodes the step has.
        address: this node's address, from `--local-addr`.

    Raises:
        ValueError: an option is unknown or its value makes no sense; the message says what was expected.
    """
    for key in config:
        if key not in OURS and key not in TORCHS:
            near = difflib.get_close_matches(key, OURS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(OURS)}"
            raise ValueError(f"--rdzv-conf: {key} is no option of the backend hpc-elastic; {hint}")
    if nodes < min_nodes:
        raise ValueError(
            f"--nnodes asks for at least {min_nodes} nodes, but the step of srun has {nodes}: "
            "expected one torchrun on every node (srun --ntasks-per-node=1)"
        )
    lease_s = _seconds(config, "lease", DEFAULT_LEASE_S)
    if not TORCHRUN.shortest_lease_s <= lease_s <= LONGEST_LEASE_S:
        raise ValueError(
            f"--rdzv-conf: lease: expected {TORCHRUN.shortest_lease_s:g} to {LONGEST_LEASE_S:g} seconds, "
            f"found {lease_s:g}; the default, {DEFAULT_LEASE_S:g}, is right for most clusters"
        )
    return Settings(
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        directory=_text(config, "dir") or DEFAULT_DIR,
        join_timeout_s=_seconds(config, "join_timeout", DEFAULT_JOIN_TIMEOUT_S),
        lease_s=lease_s,
        network=NetworkPlan(
            interface=_text(config, "interface"), hostname_transform=_text(config, "hostname_transform")
        ),
        address=address,
    )


def run_name(place: Allocation, environ: Mapping[str, str]) -> str:
    """Return the name of a step's run, which is the same on all nodes of the step."""
    step = find_step_id(environ)
    name = f"torchrun-{place.job_id}" + (f"-{step}" if step else "")
    return re.sub(r"[^\w.-]+", "-", name)


def build_plan(
    settings: Settings,
    place: Allocation,
    *,
    name: str,
    run_dir: str,
    package_dir: str,
    created: str,
    command: Sequence[str],
    workdir: str,
    python: str,
) -> LaunchPlan:
    """Build the plan of a run whose workers torchrun starts, with what membership and the records need.

    Restarts and lost nodes are not bounded here, because torchrun counts its own restarts. A node that comes back is
    admitted at once, as in torch. For membership each node has one worker, because only torchrun knows their number.
    """
    nodes = NodesPlan(min=settings.min_nodes, max=settings.max_nodes)
    entrypoint = EntrypointPlan(kind="module", target="torch.distributed.run", args=tuple(command))
    return LaunchPlan(
        format_version=FORMAT_VERSION,
        run=name,
        name="torchrun",
        run_dir=run_dir,
        created=created,
        package_dir=package_dir,
        package_version=__version__,
        site="torchrun",
        scheduler="local" if place.is_local else "slurm",
        template="none",
        nodes=replace(nodes, spares=max(0, len(place.nodes) - nodes.max)),
        roles=(RolePlan(name="default", entrypoint=entrypoint, nodes=nodes, workers_per_node=1),),
        resources=ResourcesPlan(),
        time_s=None,
        setup=(),
        workdir=workdir.replace("$", "$$"),
        python=python,
        env={},
        worker_env_slurm="keep",
        restart=UNBOUNDED,
        progress_file=None,
        elastic=ElasticPlan(
            join_timeout_s=settings.join_timeout_s,
            join_retries=3,
            lease_s=settings.lease_s,
            exit_timeout_s=None,
            rejoin="immediately",
        ),
        signals=TORCHRUNS_SIGNALS,
        stall_timeout_s=None,
        requeue=RequeuePlan(max=0, on=()),
        start="spawn",
        preload=(),
        logs=LogsPlan(per="rank"),
        log_level="info",
        network=settings.network,
        sbatch={},
    )


def _text(config: Mapping[str, object], key: str) -> str | None:
    value = config.get(key)
    return None if value is None else os.path.expanduser(str(value))


def _seconds(config: Mapping[str, object], key: str, default: float) -> float:
    """Read a duration in seconds; a plain number is in seconds, as in all of torch's options."""
    value = config.get(key, default)
    try:
        seconds = float(str(value))
    except ValueError:
        try:
            seconds = parse_duration(str(value)).total_seconds()
        except ValueError as error:
            raise ValueError(f"--rdzv-conf: {key}: {error}") from None
    if not 0 < seconds < float("inf"):
        raise ValueError(f"--rdzv-conf: {key}: expected more than 0 seconds, found {value}")
    return seconds
