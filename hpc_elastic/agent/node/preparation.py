"""Examines an agent's node before the agent joins a head; blocking, so it runs in a thread."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from hpc_elastic import __version__
from hpc_elastic.agent.node.binding import WorkerPlaces
from hpc_elastic.agent.node.cpus import describe_narrowness
from hpc_elastic.agent.node.environment import NodeFacts, worker_directory, worker_environment, worker_target
from hpc_elastic.agent.node.gpus import NodeGpus, count_gpus, gpu_problem, gpu_remarks
from hpc_elastic.agent.node.network import interface_of, is_own_address, own_address, resolve_node
from hpc_elastic.agent.node.node_environment import rehearse
from hpc_elastic.errors import AllocationError, HpcElasticError
from hpc_elastic.membership.job_end import ASKING_NODES
from hpc_elastic.membership.messages import Join
from hpc_elastic.plan.launch_plan import LaunchPlan, NetworkPlan
from hpc_elastic.plan.roles import RolePlan
from hpc_elastic.rundir.function_file import python_mismatch, read_header
from hpc_elastic.rundir.kept_records import find_latest_attempt
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.slurm.step import find_step_gpus, launch_address
from hpc_elastic.stage_variables import PROBLEM_VARIABLE

NOT_INSTALLED = "not installed"
RESOLVES_WITHIN_S = 2.0  # a node's name; the scheduler is asked after that, for some seconds
OF_AGENT = {"hpc_elastic": __version__}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A node's address, what it adds to its workers' environment, its versions, and why it cannot take part, if so.

    `gpus` is how many GPUs its workers see, None if nobody asked for any or nothing tells; `remarks` are what is odd
    about the node though it can take part, a line each.
    """

    address: str
    facts: NodeFacts
    versions: Mapping[str, str]
    problem: str | None
    gpus: int | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTies:
    """The node's relation to the Slurm job: whether it could end the job, and whether srun runs on it.

    `launch_node`: the other node on which srun runs; empty where this one does not know.
    """

    can_end_job: bool = False
    is_launch_host: bool = False
    launch_node: str = ""


def examine_job(
    allocation: Allocation,
    environ: Mapping[str, str],
    *,
    can_end_job: Callable[[str], bool],
    find_addresses: Callable[[str], Collection[str]] | None = None,
) -> JobTies:
    """Return this node's ties to the job; a few nodes ask the scheduler, ahead of need. May take some seconds.

    These few also find out whether srun runs on the first node: should that be lost before its agent has joined, nobody
    else could tell that its script is lost. It may run on no node of the step, as in an allocation of a person's own.

    Args:
        allocation: this node's place.
        environ: the agent's environment.
        can_end_job: returns whether this node could end a job.
        find_addresses: returns the addresses of a node; asks the name server by default.
    """
    if allocation.is_local:
        return JobTies()
    address, first = launch_address(environ), allocation.nodes[0]
    is_asking = allocation.node_id in ASKING_NODES
    is_own = is_own_address(address)
    is_on_first = is_asking and bool(address) and not is_own and address in (find_addresses or _addresses)(first)
    return JobTies(
        can_end_job=is_asking and can_end_job(allocation.job_id),
        is_launch_host=is_own,
        launch_node=first if is_on_first else "",
    )


def _addresses(name: str) -> Collection[str]:
    return resolve_node(name, NetworkPlan(), within_s=RESOLVES_WITHIN_S).addresses


def examine_node(
    plan: LaunchPlan, allocation: Allocation, environ: Mapping[str, str], places: WorkerPlaces | None = None
) -> NodeReport:
    """Examine this node's network, GPUs and files.

    A problem is reported, not raised: the head has to learn of it, or it would wait for this node.
    """
    address, interface = "", None
    places = places or WorkerPlaces()
    gpus = NodeGpus()
    has_no_stage = PROBLEM_VARIABLE in environ  # unhealthy: what workers need is not here, nor the Python of the others
    problem = None
    try:
        address = _published_address(plan, allocation)
        interface = interface_of(address)
        if not has_no_stage:
            problem = places.problem or _workers_problem(plan, allocation, environ, places.threads)
        if problem is None and not has_no_stage and _has_gpus(plan, environ):
            gpus = count_gpus(environ)
            problem = gpu_problem(plan, gpus)
    except HpcElasticError as error:
        problem = f"{error.message}; {error.tip}" if error.tip else error.message
    role = _role(plan, allocation)
    facts = NodeFacts(
        node=allocation.node,
        role=role,
        gloo_interface=interface,
        threads=places.threads,
        cpus=places.cpus,
    )
    workers = plan.workers_on(allocation.node_id, len(allocation.nodes))
    narrow = None if allocation.is_local else describe_narrowness(environ)
    return NodeReport(
        address=address,
        facts=facts,
        versions=OF_AGENT if has_no_stage else find_versions(role),
        problem=problem,
        gpus=gpus.count,
        remarks=(*((narrow,) if narrow else ()), *gpu_remarks(plan, gpus, workers), *places.remarks),
    )


def find_versions(role: RolePlan) -> dict[str, str]:
    """Return the versions that must match on all nodes; torch's without an import, if workers run this Python."""
    versions = {"python": platform.python_version(), "hpc_elastic": __version__}
    if role.entrypoint.kind != "command":
        try:
            versions["torch"] = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            versions["torch"] = NOT_INSTALLED
    return versions


def describe_node(
    plan: LaunchPlan,
    allocation: Allocation,
    report: NodeReport,
    ties: JobTies,
    *,
    agent: Endpoint,
    store_port: int,
    unhealthy: str | None = None,
    keeper_port: int = 0,
) -> Join:
    """Return the message with which this node joins a head; `unhealthy` is what its health checks found."""
    return Join(
        node=allocation.node,
        node_id=allocation.node_id,
        agent=agent,
        store_port=store_port,
        workers=plan.workers_on(allocation.node_id, len(allocation.nodes)),
        role=report.facts.role.name,
        versions=report.versions,
        problem=report.problem,
        can_end_job=ties.can_end_job,
        is_launch_host=ties.is_launch_host,
        launch_node=ties.launch_node,
        unhealthy=unhealthy,
        gpus=report.gpus,
        remarks=report.remarks,
        keeper_port=keeper_port,
        switch=allocation.switch if plan.state.is_by_switch else "",
    )


def _published_address(plan: LaunchPlan, allocation: Allocation) -> str:
    """Return this node's address; another interface's where the site's is missing and the health check says so.

    Workers could not reach each other over it, but the agent can say what is wrong, and can be head.
    """
    try:
        return own_address(allocation, plan.network)
    except AllocationError:
        if plan.network.interface is None or "interface" not in plan.health:
            raise
        return own_address(allocation, replace(plan.network, interface=None))


def _has_gpus(plan: LaunchPlan, environ: Mapping[str, str]) -> bool:
    """Return whether the job asks for GPUs, or Slurm gave the step some; without, the vendor's tool is not asked."""
    if plan.resources.gpus_per_node:
        return True
    of_step = find_step_gpus(environ)
    return of_step is not None and of_step.count != 0


def _workers_problem(
    plan: LaunchPlan, allocation: Allocation, environ: Mapping[str, str], threads: int | None
) -> str | None:
    """Return why the workers could not start on this node, None if they could."""
    rehearsal = rehearse(plan, allocation)
    role = _role(plan, allocation)
    facts = NodeFacts(node=allocation.node, role=role, gloo_interface=None, threads=threads)
    worker_environment(environ, plan, rehearsal, facts, rehearsal.workers - 1)  # the last has a GPU too
    environment = worker_environment(environ, plan, rehearsal, facts, 0)
    worker_target(plan, role, environment, is_restart=True)  # a restart has all arguments
    directory = worker_directory(plan, environment)
    if not os.path.isdir(directory):
        return f"workdir {directory} is not a directory on this node"
    if _misses_other_run(plan):
        return f"state.load_from {plan.state.load_from} is not a directory on this node"
    script = os.path.join(directory, role.entrypoint.target)
    if role.entrypoint.kind == "script" and not os.path.isfile(script):
        return f"{plan.key_in(role, 'entrypoint.script')} {script} is not a file on this node"
    if role.entrypoint.kind == "function":
        mismatch = python_mismatch(read_header(RunLayout(plan.run_dir).function), platform.python_version())
        if mismatch is not None:
            return mismatch
    return None


def _misses_other_run(plan: LaunchPlan) -> bool:
    """Return whether the run would begin with the state of another one, whose directory this node does not have."""
    other = plan.state.load_from
    return other is not None and not os.path.isdir(other) and find_latest_attempt(RunLayout(plan.run_dir)) == 0


def _role(plan: LaunchPlan, allocation: Allocation) -> RolePlan:
    return plan.role_on(allocation.node_id, len(allocation.nodes))
