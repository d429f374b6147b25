"""What the scheduler says of this node's place: from the step's environment, pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpc_elastic.errors import AllocationError
from hpc_elastic.hostlist import expand_hostlist
from hpc_elastic.job_ids import array_task_of, slurm_job_id

LOCAL_NETWORK = "127.0.0."


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """This node's place in one start by the scheduler.

    `nodes` are the names of all nodes of the step, by node id. `is_local` is the local backend,
    where every node is this machine, with a loopback address of its own, and shares it with other runs of
    an array: so many are at work at once, this one among them. The `job_id` of a task of an array is
    `<array>_<task>`.
    """

    job_id: str
    restart_count: int
    array_task: int | None
    node_id: int
    nodes: tuple[str, ...]
    is_local: bool
    runs_at_once: int = 1

    @property
    def node(self) -> str:
        """This node's name."""
        return self.nodes[self.node_id]

    def local_address(self, node_id: int) -> str:
        """A node's loopback address on the local backend: 127.0.0.2, 127.0.0.3 ..."""
        return f"{LOCAL_NETWORK}{node_id + 2}"


def derive_start(environ: Mapping[str, str]) -> tuple[str, int]:
    """The job, and how often Slurm has started it again: in the environment of its script or of a step.

    Raises:
        AllocationError: there is no job.
    """
    job_id = environ.get("HPC_ELASTIC_LOCAL_JOB_ID")
    if job_id is not None:
        return job_id, 0
    job_id = slurm_job_id(environ)
    if job_id is None:
        raise AllocationError("no SLURM_JOB_ID in the environment: this is no job of Slurm")
    return job_id, _number(environ, "SLURM_RESTART_COUNT", default=0)


def derive_allocation(environ: Mapping[str, str]) -> Allocation:
    """Reads the environment of the Slurm step, or of the local backend.

    The step's variables are used, never the batch script's (`SLURM_JOB_NODELIST`,
    `SLURM_NNODES`): a step may run on fewer nodes than its job.

    Raises:
        AllocationError: there is no step, or it has not exactly one task a node.
    """
    if "HPC_ELASTIC_LOCAL_JOB_ID" in environ:
        return _derive_local(environ)
    if "SLURM_STEP_NODELIST" not in environ:
        raise AllocationError(
            "no SLURM_STEP_NODELIST in the environment: the agent was not started by srun",
            tip="submit with `hpc-elastic submit`, or use `hpc-elastic run` inside an allocation",
        )
    try:
        nodes = tuple(expand_hostlist(environ["SLURM_STEP_NODELIST"]))
    except ValueError as error:
        raise AllocationError(f"SLURM_STEP_NODELIST cannot be read: {error}") from error
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS", default=len(nodes))
    per_node = environ.get("SLURM_STEP_TASKS_PER_NODE", "1")
    if tasks != len(nodes) or per_node not in ("1", f"1(x{len(nodes)})"):
        raise AllocationError(
            f"the step has {tasks} tasks on {len(nodes)} nodes ({per_node} a node), expected one a node",
            tip="start the agents with srun --ntasks-per-node=1 --ntasks=NODES, as the shipped template does",
        )
    node_id = _number(environ, "SLURM_NODEID")
    if not 0 <= node_id < len(nodes):
        raise AllocationError(f"SLURM_NODEID is {node_id}, but the step has {len(nodes)} nodes: {', '.join(nodes)}")
    array_task = environ.get("SLURM_ARRAY_TASK_ID")
    return Allocation(
        job_id=slurm_job_id(environ) or "",
        restart_count=_number(environ, "SLURM_RESTART_COUNT", default=0),
        array_task=int(array_task) if array_task and array_task.isdigit() else None,
        node_id=node_id,
        nodes=nodes,
        is_local=False,
    )


def _derive_local(environ: Mapping[str, str]) -> Allocation:
    count = _number(environ, "HPC_ELASTIC_LOCAL_NODES")
    node_id = _number(environ, "HPC_ELASTIC_LOCAL_NODE_ID")
    if node_id >= count:
        raise AllocationError(f"HPC_ELASTIC_LOCAL_NODE_ID is {node_id}, but there are {count} local nodes")
    job_id = environ["HPC_ELASTIC_LOCAL_JOB_ID"]
    return Allocation(
        job_id=job_id,
        restart_count=0,
        array_task=array_task_of(job_id),
        node_id=node_id,
        nodes=tuple(f"local{number}" for number in range(count)),
        is_local=True,
        runs_at_once=max(1, _number(environ, "HPC_ELASTIC_LOCAL_RUNS_AT_ONCE", default=1)),
    )


def _number(environ: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise AllocationError(f"{name} is {text!r}, expected a number")
    return int(text)
