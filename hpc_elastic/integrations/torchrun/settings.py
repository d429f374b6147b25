"""What torchrun's options ask of the backend: read from its parameters, checked, and made into a launch plan."""

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
# Keys of torch's own backends, and what torch sets by itself: a command line that was made for c10d works as it is.
TORCHS = frozenset(
    {
        *("timeout", "rank", "read_timeout", "is_host", "store_type", "last_call_timeout", "close_timeout"),
        *("heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt"),
    }
)
DEFAULT_DIR = "hpc-elastic-runs"
DEFAULT_JOIN_TIMEOUT_S = 600.0  # torch's own, too
DEFAULT_LEASE_S = 10.0
# torchrun's --max-restarts counts failures, each node its own.
UNBOUNDED = RestartPlan(
    max_restarts=NO_LIMIT,
    backoff=BackoffPlan(first_s=0.0, factor=1.0, max_s=0.0),
    no_progress_limit=NO_LIMIT,
    max_node_losses=NO_LIMIT,
)
TORCHRUNS_SIGNALS = SignalsPlan(notice="USR2", lead_s=0.0, grace_s=30.0, restart_grace_s=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The backend's options; times in seconds. `address` is this node's own, if torchrun was told one."""

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
    """The settings in torch's parameters.

    Args:
        config: `--rdzv-conf`.
        min_nodes: of `--nnodes`.
        max_nodes: of `--nnodes`.
        nodes: how many the step has.
        address: `--local-addr`.

    Raises:
        ValueError: an option is unknown or has no sense; the message says what was expected.
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
    """What the run of one step is called, the same on all of its nodes."""
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
    """The plan of a run whose workers torchrun starts: what membership and the records need of one.

    Restarts and lost nodes are not bounded here: torchrun counts its own. A node that comes back is taken in at once,
    as torch does it. To membership each node has one worker, for how many it has only torchrun knows.
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
    """A number is in seconds, as in all of torch's options."""
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
