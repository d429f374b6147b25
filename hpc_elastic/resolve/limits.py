"""Compares what a job asks for with what its site, partition and QOS allow; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from hpc_elastic.plan.launch_plan import ResourcesPlan
from hpc_elastic.site.config import SiteConfig
from hpc_elastic.site.limits import Bounds, Limits
from hpc_elastic.units import format_slurm_memory, parse_slurm_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a job asks its scheduler for, defaults and the site's among it.

    `least_nodes` and `most_nodes` have the spares in them. `sbatch` has the options of `sbatch:`, and those that sbatch
    takes from variables of the submitting shell, such as SBATCH_ACCOUNT.
    """

    least_nodes: int
    most_nodes: int
    has_roles: bool
    time: timedelta | None
    resources: ResourcesPlan
    sbatch: Mapping[str, str]


def find_excess(request: JobRequest, site: SiteConfig) -> Iterator[str]:
    """Yield a line for each thing that the job asks for and its partition or QOS does not allow.

    Slurm starts a job with several partitions in any one of them, so there must be one that allows it.
    """
    for kind, known in (("partition", site.partitions), ("QOS", site.qos)):
        names = [name for name in request.sbatch.get(kind.lower(), "").split(",") if name]
        limits = [(name, known[name]) for name in names if name in known]
        if names and len(limits) == len(names):
            found = [list(_excess(f"{kind} {name}", one, request, site)) for name, one in limits]
            yield from min(found, key=len)


def find_missing(request: JobRequest, site: SiteConfig) -> Iterator[str]:
    """Yield a line for each option that the site requires and nobody gives."""
    for option in site.required:
        if not request.sbatch.get(option):
            advice = f"give it in the job file as `sbatch: {{{option}: ...}}`, or as `--set sbatch.{option}=...`"
            page = f" ({site.url})" if site.url else ""
            yield f"sbatch.{option}: missing; site {site.name} requires it{page}; {advice}"


def limits_of(sbatch: Mapping[str, str | None], site: SiteConfig) -> Sequence[tuple[str, Limits]]:
    """Return the limits that a job is under, each with its name, such as `partition gpu`."""
    pairs = (("partition", site.partitions), ("QOS", site.qos))
    named = [(kind, sbatch.get(kind.lower()) or "", known) for kind, known in pairs]
    return [(f"{kind} {name}", known[name]) for kind, name, known in named if name in known]


def _excess(name: str, limits: Limits, request: JobRequest, site: SiteConfig) -> Iterator[str]:
    page = limits.page or site.url
    place = f" ({page})" if page else ""
    key = "roles" if request.has_roles else "nodes"
    yield from _time_excess(name, limits, request, place)
    for number in dict.fromkeys((request.least_nodes, request.most_nodes)):
        if limits.nodes is not None and not limits.nodes.contains(number):
            yield f"{key}: {name} allows {limits.nodes} nodes{place}, the job asks {number}"
            break
    resources = request.resources
    gpus, cpus = resources.gpus_per_node, resources.cpus_per_task
    yield from _number("resources.gpus_per_node", name, limits.gpus_per_node, "GPUs a node", gpus, place)
    yield from _number("resources.cpus_per_worker", name, limits.cpus_per_node, "CPUs a node", cpus, place)
    if limits.cpus_per_gpu is not None and gpus:
        yield from _cpus_per_gpu(name, limits.cpus_per_gpu, gpus, cpus, place)
    memory = _memory(resources)
    if limits.memory_per_node is not None and memory > parse_slurm_memory(limits.memory_per_node):
        asked = format_slurm_memory(memory)
        yield f"resources.memory_per_node: {name} allows at most {limits.memory_per_node}{place}, the job asks {asked}"


def _time_excess(name: str, limits: Limits, request: JobRequest, place: str) -> Iterator[str]:
    # Of a range Slurm may give the fewest nodes, which have the shortest time.
    row = next((row for row in limits.max_time_by_nodes if request.least_nodes <= row.max_nodes), None)
    longest = row.max_time if row else limits.max_time
    if request.time is None or longest is None or request.time <= longest:
        return
    on_nodes = f" to at most {row.max_nodes} nodes" if row else ""
    asked = _in_one_unit(request.time) + (f" for {request.least_nodes}" if row else "")
    yield f"time: {name} allows {_in_one_unit(longest)}{on_nodes}{place}, the job asks {asked}"


def _in_one_unit(duration: timedelta) -> str:
    """Return a duration in hours or minutes, so that two of them can be compared at a look."""
    unit, name = (timedelta(hours=1), "h") if duration >= timedelta(hours=1) else (timedelta(minutes=1), "min")
    return f"{duration / unit:.8g} {name}"


def _number(key: str, name: str, bounds: Bounds | None, of_what: str, asked: int | None, place: str) -> Iterator[str]:
    if bounds is None or (asked is None and bounds.min is None) or bounds.contains(asked or 0):
        return
    yield f"{key}: {name} allows {bounds} {of_what}{place}, the job asks {asked or 'for none'}"


def _cpus_per_gpu(name: str, bounds: Bounds, gpus: int, cpus: int | None, place: str) -> Iterator[str]:
    """Compare the CPUs of a node with those that its GPUs entitle to; a job that says nothing gets what Slurm gives."""
    if cpus is None and bounds.min is None:
        return
    least, most = (bounds.min or 0) * gpus, None if bounds.max is None else bounds.max * gpus
    if cpus is None or cpus < least or (most is not None and cpus > most):
        asked = "for no CPUs" if cpus is None else f"{cpus} for {gpus}"
        yield f"resources.cpus_per_worker: {name} allows {bounds} CPUs for each GPU{place}, the job asks {asked}"


def _memory(resources: ResourcesPlan) -> int:
    """Return the memory of a node in bytes; 0 if it is not known, and where all of it is asked for."""
    if resources.memory_per_node:
        return parse_slurm_memory(resources.memory_per_node)
    if resources.memory_per_cpu and resources.cpus_per_task:
        return parse_slurm_memory(resources.memory_per_cpu) * resources.cpus_per_task
    return 0
