"""Computes each worker's environment variables, its working directory and what it runs.

Besides its arguments it takes the id of this process, by which the agent's workers are known.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from hpc_elastic.agent.system.processes import (
    AGENT_VARIABLE,
    ATTEMPT_VARIABLE,
    NODE_VARIABLE,
    RUN_DIR_VARIABLE,
    agent_id,
)
from hpc_elastic.cpu_binding import CPUS_VARIABLE, REAL_LOCAL_RANK
from hpc_elastic.errors import AllocationError
from hpc_elastic.job_ids import ARRAY_MARK, TIME_LEFT_VARIABLE
from hpc_elastic.membership.messages import Assign
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.references import BadReferenceError, expand_references
from hpc_elastic.plan.roles import RolePlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.slurm.step import is_task_level, rank_variables

_AGENTS_OWN = (
    *("HPC_ELASTIC_LOCAL_", "HPC_ELASTIC_HOST_", "HPC_ELASTIC_STAGE_"),
    *(ARRAY_MARK, TIME_LEFT_VARIABLE, CPUS_VARIABLE),
)
_GPUS, _HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"  # AMD takes the first if there is no second


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The facts about this node that every worker's environment depends on.

    `gloo_interface` is the interface that holds the published address; `threads` is the number of threads of a worker
    by the cores that it has, None where that is torch's own or the job's; `cpus` are the CPUs that each worker is
    bound to, empty if they are not bound.
    """

    node: str
    role: RolePlan
    gloo_interface: str | None
    threads: int | None = None
    cpus: tuple[str, ...] = ()


def worker_environment(
    base: Mapping[str, str], plan: LaunchPlan, assign: Assign, facts: NodeFacts, local_rank: int
) -> dict[str, str]:
    """Return the whole environment of one worker.

    In this order, later values override earlier ones: the agent's own environment, our defaults, the plan's `env`,
    the role's `env`, and the variables that make a worker part of its world, which no setting can override.

    Args:
        base: the agent's environment, after the job's setup lines.
        plan: the launch plan.
        assign: this node's part of the world.
        facts: what this node adds.
        local_rank: the worker's number on this node.

    Raises:
        AllocationError: `env` names a variable that is not set, or there is no GPU for this worker alone.
    """
    world = world_variables(plan, assign, facts, local_rank)
    inherited = {name: value for name, value in base.items() if not name.startswith(_AGENTS_OWN)}
    if plan.worker_env_slurm != "keep":
        inherited = {name: value for name, value in inherited.items() if not is_task_level(name)}
    if plan.worker_env_slurm == "rank":
        inherited |= rank_variables(world)
    defaults = {name: value for name, value in _defaults(plan, assign, facts).items() if name not in inherited}
    environment = inherited | defaults | world
    environment |= _asked_variables(plan, facts.role, environment) | world
    return environment | _virtual_variables(environment, local_rank) if plan.virtual_local_rank else environment


def worker_target(
    plan: LaunchPlan, role: RolePlan, environment: Mapping[str, str], *, is_restart: bool
) -> tuple[str, list[str]]:
    """Return what a worker runs (its script, module, program or function's file) and the arguments.

    Args:
        plan: the launch plan.
        role: the worker's role.
        environment: the worker's whole environment, for `${NAME}` in the arguments.
        is_restart: whether the run had an attempt before this one, of this start of the job or of an earlier one.

    Raises:
        AllocationError: an argument names a variable that is not set.
    """
    entrypoint = role.entrypoint
    target = entrypoint.target
    if REAL_LOCAL_RANK in environment:  # `${LOCAL_RANK}` is torch's `macros.local_rank`, which stays the real one
        environment = {**environment, "LOCAL_RANK": environment[REAL_LOCAL_RANK]}
    if entrypoint.kind == "script":
        target = os.path.join(worker_directory(plan, environment), target)
    elif entrypoint.kind == "function":
        target = RunLayout(plan.run_dir).function
    given = {"args": entrypoint.args} | ({"restart_args": entrypoint.restart_args} if is_restart else {})
    arguments = [
        _expand(argument, environment, f"{plan.key_in(role, f'entrypoint.{key}')}[{index}]")
        for key, values in given.items()
        for index, argument in enumerate(values)
    ]
    return target, arguments


def worker_directory(plan: LaunchPlan, environment: Mapping[str, str]) -> str:
    """Return the working directory of every worker on this node.

    Raises:
        AllocationError: `workdir` names a variable that is not set.
    """
    return _expand(plan.workdir, environment, "workdir")


def world_variables(plan: LaunchPlan, assign: Assign, facts: NodeFacts, local_rank: int) -> dict[str, str]:
    """Return the variables that make a worker part of its world, which no setting can override."""
    rank = assign.first_rank + local_rank
    bound = {CPUS_VARIABLE: facts.cpus[local_rank]} if facts.cpus else {}
    return bound | {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(assign.world_size),
        "LOCAL_WORLD_SIZE": str(assign.workers),
        "GROUP_RANK": str(assign.group_rank),
        "GROUP_WORLD_SIZE": str(assign.group_world_size),
        "ROLE_NAME": facts.role.name,
        "ROLE_RANK": str(assign.first_role_rank + local_rank),
        "ROLE_WORLD_SIZE": str(assign.role_world_size),
        "MASTER_ADDR": assign.master.address,
        "MASTER_PORT": str(assign.master.port),
        "TORCHELASTIC_RUN_ID": plan.run,
        "TORCHELASTIC_RESTART_COUNT": str(assign.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.restart.max_restarts),
        "TORCHELASTIC_ERROR_FILE": RunLayout(plan.run_dir).error(assign.attempt, rank),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # torch honours this spelling only
        RUN_DIR_VARIABLE: plan.run_dir,
        ATTEMPT_VARIABLE: str(assign.attempt),
        NODE_VARIABLE: facts.node,
        AGENT_VARIABLE: agent_id(os.getpid()),
    }


def _virtual_variables(environment: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Return what differs where each worker sees one GPU, as device 0: as torch's `_set_local_rank_env` (2.13).

    On AMD a `HIP_VISIBLE_DEVICES` hides `CUDA_VISIBLE_DEVICES`, so that it is the list that has to change.
    """
    list_name = _HIP if _HIP in environment else _GPUS
    visible = environment.get(list_name)
    if visible is None:
        return {"LOCAL_RANK": "0", _GPUS: str(local_rank), REAL_LOCAL_RANK: str(local_rank)}
    gpus = [word.strip() for word in visible.split(",")]
    if local_rank >= len(gpus):
        found = f"{list_name} is {visible!r}: none for local rank {local_rank}"
        raise AllocationError(
            f"virtual_local_rank wants a GPU for each worker, and {found}",
            tip="ask for as many GPUs as workers: resources.gpus_per_node, workers_per_node",
        )
    return {"LOCAL_RANK": "0", list_name: gpus[local_rank], REAL_LOCAL_RANK: str(local_rank)}


def _defaults(plan: LaunchPlan, assign: Assign, facts: NodeFacts) -> dict[str, str]:
    """Return our default variables, which the user's setup lines and `env` may override."""
    defaults = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        # gloo and TCPStore do reverse look-ups of peers; a name server that does not answer costs 5 s for each.
        "RES_OPTIONS": "timeout:1 attempts:1",
    }
    threads = facts.threads or plan.resources.cpus_per_worker
    if threads is not None or assign.workers > 1:
        defaults["OMP_NUM_THREADS"] = str(threads or 1)
    if facts.gloo_interface is not None:
        defaults["GLOO_SOCKET_IFNAME"] = facts.gloo_interface
    if plan.network.nccl_socket_ifname is not None:
        defaults["NCCL_SOCKET_IFNAME"] = plan.network.nccl_socket_ifname
    if plan.log_level == "debug":
        defaults |= {"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    return defaults


def _asked_variables(plan: LaunchPlan, role: RolePlan, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the job's `env` overridden by the role's `env`; a None in the role's removes one of the job's."""
    keys = {name: f"env.{name}" for name in plan.env} | {name: plan.key_in(role, f"env.{name}") for name in role.env}
    asked = {**plan.env, **role.env}
    return {name: _expand(value, environment, keys[name]) for name, value in asked.items() if value is not None}


def _expand(text: str, environment: Mapping[str, str], key: str) -> str:
    try:
        return expand_references(text, environment)
    except BadReferenceError as error:
        raise AllocationError(f"{key}: {error}") from error
