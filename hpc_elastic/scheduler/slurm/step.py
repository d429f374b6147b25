"""Reads what Slurm tells a job's script, its steps and their tasks, by variables and in their output; pure.

Source: the environment variables of sbatch(1) and srun(1); captured on Slurm 22.05, 24.11 and 26.05.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpc_elastic.errors import AllocationError
from hpc_elastic.hostlist import expand_hostlist
from hpc_elastic.job_ids import ARRAY_MARK, RESERVATION_VARIABLE, TIME_LEFT_VARIABLE, array_task_id
from hpc_elastic.scheduler.allocation import Allocation, read_number

PREFIX = "SLURM_"
# Task-level variables describe the agent, which is one task a node, and would give a worker a wrong
# rank. Variables that describe the job as a whole are kept.
_KEPT_PREFIXES = ("SLURM_JOB", "SLURM_ARRAY", "SLURM_SUBMIT", "SLURM_CLUSTER", "SLURM_GPUS", "SLURM_MEM")
_KEPT = frozenset({"SLURM_CONF", "SLURM_RESTART_COUNT", "SLURM_TMPDIR", "SLURM_CPUS_PER_TASK", "SLURMD_NODENAME"})
# What slurmstepd writes to the standard error of a step that `scancel JOB.STEP` ends (22.05, 24.11 and 26.05). Another
# cause stands after DUE TO (TIME LIMIT, PREEMPTION, NODE FAILURE ...); the signal of 26.05 is none.
_CANCELLED = re.compile(r".*\berror: \*\*\* STEP (\S+) ON \S+ CANCELLED AT \S+(?: DUE to SIGNAL \w+)? \*\*\*")
_TASK_PREFIXES = ("SLURM", "SRUN", "PMI_", "PMIX_", "PMI2_")


def is_here(environ: Mapping[str, str]) -> bool:
    """Return whether this is the environment of a job's script or of a step."""
    return find_job_id(environ) is not None or "SLURM_STEP_NODELIST" in environ


def find_job_id(environ: Mapping[str, str]) -> str | None:
    """Return the id of the job that this environment belongs to; None if it belongs to no job.

    The id of an array's task has the form `<array>_<task>` where it is certain that the job is one, and always for the
    task whose own job id is the array's: with that id `scancel` would end the whole array. A job that was submitted
    inside of a task inherits the task's `SLURM_ARRAY_*` (22.05), so these variables alone prove nothing.
    """
    own = find_job_number(environ) or None
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if own and array and task and task.isdecimal() and own in (array, environ.get(ARRAY_MARK)):
        return array_task_id(array, int(task))
    return own


def derive_start(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the job's id, and how often Slurm has requeued the job.

    Raises:
        AllocationError: there is no job.
    """
    job_id = find_job_id(environ)
    if job_id is None:
        raise AllocationError("no SLURM_JOB_ID in the environment: this is no job of Slurm")
    return job_id, read_number(environ, "SLURM_RESTART_COUNT", default=0)


def derive_allocation(environ: Mapping[str, str]) -> Allocation:
    """Return this node's place in its step.

    The step's variables are used, never the batch script's (`SLURM_JOB_NODELIST`,
    `SLURM_NNODES`): a step may run on fewer nodes than its job.

    Raises:
        AllocationError: there is no step, or it has not exactly one task a node.
    """
    if "SLURM_STEP_NODELIST" not in environ:
        raise AllocationError(
            "no SLURM_STEP_NODELIST in the environment: the agent was not started by srun",
            tip="submit with `hpc-elastic submit`, or use `hpc-elastic run` inside an allocation",
        )
    try:
        nodes = tuple(expand_hostlist(environ["SLURM_STEP_NODELIST"]))
    except ValueError as error:
        raise AllocationError(f"SLURM_STEP_NODELIST cannot be read: {error}") from error
    tasks = read_number(environ, "SLURM_STEP_NUM_TASKS", default=len(nodes))
    per_node = environ.get("SLURM_STEP_TASKS_PER_NODE", "1")
    if tasks != len(nodes) or per_node not in ("1", f"1(x{len(nodes)})"):
        raise AllocationError(
            f"the step has {tasks} tasks on {len(nodes)} nodes ({per_node} a node), expected one a node",
            tip="start the agents with srun --ntasks-per-node=1 --ntasks=NODES, as the shipped template does",
        )
    node_id = read_number(environ, "SLURM_NODEID")
    if not 0 <= node_id < len(nodes):
        raise AllocationError(f"SLURM_NODEID is {node_id}, but the step has {len(nodes)} nodes: {', '.join(nodes)}")
    array_task = environ.get("SLURM_ARRAY_TASK_ID")
    return Allocation(
        job_id=find_job_id(environ) or "",
        restart_count=read_number(environ, "SLURM_RESTART_COUNT", default=0),
        array_task=int(array_task) if array_task and array_task.isdigit() else None,
        node_id=node_id,
        nodes=nodes,
        is_local=False,
        time_left=environ.get(TIME_LEFT_VARIABLE),
        is_reserved=bool(environ.get(RESERVATION_VARIABLE)),
        switch=_switch(environ.get("SLURM_TOPOLOGY_ADDR", ""), nodes[node_id]),
    )


def _switch(address: str, node: str) -> str:
    """Return the switches, or the block, above a node: all of its topology address (`top.leaf3.node7`) but its name.

    Without a topology plugin the address is the node's name alone.
    """
    return "" if address == node else address.removesuffix(f".{node}")


def find_job_nodes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of this script's job, in the order of its steps; none if the script is no job's, or unclear."""
    with contextlib.suppress(ValueError):
        return expand_hostlist(environ.get("SLURM_JOB_NODELIST", ""))
    return ()


def find_job_number(environ: Mapping[str, str]) -> str:
    """Return the number of this script's job, a task's own one for a task of an array; empty if it is no job's."""
    return environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""


def launch_address(environ: Mapping[str, str]) -> str:
    """Return the address of the node where srun runs; empty where Slurm does not say."""
    return environ.get("SLURM_LAUNCH_NODE_IPADDR", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGpus:
    """The GPUs that Slurm says it gave a step on its node: their number, and their names on the node if it tells."""

    count: int | None = None
    names: str | None = None

    def __str__(self) -> str:
        number = "GPUs" if self.count is None else f"{self.count} {'GPU' if self.count == 1 else 'GPUs'}"
        return f"{number} [{self.names}]" if self.names else number


def find_step_gpus(environ: Mapping[str, str]) -> StepGpus | None:
    """Return the GPUs that the step has by Slurm's variables; None if they say nothing of GPUs.

    `SLURM_GPUS_ON_NODE` is the number for the step (20.11 and later). The names are the node's own numbers, which are
    not those of `CUDA_VISIBLE_DEVICES` where a cgroup keeps the others out: the step's, in a batch script the job's.
    """
    number = environ.get("SLURM_GPUS_ON_NODE", "").rpartition(":")[2]  # a type may stand before it
    names = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS")
    if not number.isdecimal():
        return None if not names else StepGpus(count=None, names=names)
    return StepGpus(count=int(number), names=names)


def find_step_cpus(environ: Mapping[str, str]) -> int | None:
    """Return the number of CPUs that the step has on its node by Slurm's word; None if it says nothing."""
    number = environ.get("SLURM_CPUS_ON_NODE", "")
    return int(number) if number.isdecimal() and int(number) else None


def find_step_id(environ: Mapping[str, str]) -> str | None:
    """Return the number of the step within its job; None outside of a step."""
    return environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or None


def count_tasks(environ: Mapping[str, str]) -> str | None:
    """Return the number of tasks of this process's step; None if srun did not start this process."""
    return environ.get("SLURM_STEP_NUM_TASKS", "1") if "SLURM_STEP_ID" in environ else None


def is_task_level(name: str) -> bool:
    """Return whether a variable is about one task of a step, or about PMI, which starts MPI programs."""
    if not name.startswith(_TASK_PREFIXES):
        return False
    return name not in _KEPT and not name.startswith(_KEPT_PREFIXES)


def rank_variables(world: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `srun python` would have set, for scripts that were written for srun.

    Args:
        world: torch's variables of the worker, `RANK`, `GROUP_RANK` ...
    """
    return {
        "SLURM_PROCID": world["RANK"],
        "SLURM_LOCALID": world["LOCAL_RANK"],
        "SLURM_NTASKS": world["WORLD_SIZE"],
        "SLURM_NPROCS": world["WORLD_SIZE"],
        "SLURM_NODEID": world["GROUP_RANK"],
        "SLURM_NNODES": world["GROUP_WORLD_SIZE"],
    }


def find_cancelled_step(lines: Sequence[str]) -> str:
    """Return the step that was cancelled by itself, as `12.0`, by the last lines of its output; empty if none was.

    Nothing that ran in the step has written a line since. A step that went over its memory is cancelled, too, and
    then a line before says so.
    """
    last = next((number for number in range(len(lines), 0, -1) if not _is_slurms(lines[number - 1])), 0)
    told = lines[last:]
    if any("memory" in line for line in told):
        return ""
    return next((match[1] for line in told if (match := _CANCELLED.fullmatch(line))), "")


def _is_slurms(line: str) -> bool:
    return line.startswith(("slurmstepd", "srun", "[")) and ": " in line
