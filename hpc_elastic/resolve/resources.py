"""Resolves the resources of a node into the options of this site's scheduler."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_elastic.errors import JobError
from hpc_elastic.job.sbatch_options import count_gpus, count_gres_gpus, read_count, read_memory, without_gpus
from hpc_elastic.job.spec import JobDefaults, ResourcesSpec
from hpc_elastic.plan.launch_plan import ResourcesPlan
from hpc_elastic.site.config import SiteConfig
from hpc_elastic.units import format_slurm_memory, parse_slurm_memory

_LIFTED = frozenset({"cpus-per-task", "gpus-per-node", "gres", "mem", "mem-per-cpu", "mem-per-gpu"})


def resolve_workers(spec: JobDefaults, asked: int | tuple[int, ...] | str | None) -> int | tuple[int, ...]:
    """Return the number of workers of a node: for `auto` one for each of its GPUs, or one if there are none."""
    if isinstance(asked, (int, tuple)):
        return asked
    return _gpus(spec) or 1


def resolve_resources(spec: JobDefaults, site: SiteConfig, most_workers: int) -> ResourcesPlan:
    """Return the resources of a node and the options that request them, each option once.

    Args:
        spec: the job with all defaults.
        site: the site, which says how resources are requested.
        most_workers: the largest number of workers of any node.

    Raises:
        JobError: the site wants memory requested per CPU, and the number of CPUs is not known.
    """
    resources, sbatch = spec.resources or ResourcesSpec(), _options(spec)
    cpus = read_count(sbatch["cpus-per-task"]) if "cpus-per-task" in sbatch else None
    cpus_per_worker = resources.cpus_per_worker
    if cpus_per_worker is not None:
        cpus = cpus_per_worker * most_workers
    elif cpus is not None:
        cpus_per_worker = max(1, cpus // most_workers)
    gpus_option, gres = _gpu_options(resources, site, sbatch)
    memory = _memory_options(resources, site, sbatch, cpus)
    return ResourcesPlan(
        gpus_per_node=_gpus(spec),
        cpus_per_worker=cpus_per_worker,
        exclusive=bool(resources.exclusive) or sbatch.get("exclusive") == "true",
        cpus_per_task=cpus,
        gpus_per_node_option=gpus_option,
        gres=gres,
        memory_per_node=memory.get("mem"),
        memory_per_cpu=memory.get("mem-per-cpu"),
        memory_per_gpu=memory.get("mem-per-gpu"),
    )


def remaining_options(spec: JobDefaults) -> dict[str, str]:
    """Return the options of `sbatch:` that are passed on unchanged: those that have no key in `resources`."""
    return {
        option: value
        for option, value in _options(spec).items()
        if option not in _LIFTED and not (option == "exclusive" and value == "true")
    }


def _options(spec: JobDefaults) -> dict[str, str]:
    return {option: value for option, value in (spec.sbatch or {}).items() if value is not None}


def _gpus(spec: JobDefaults) -> int | None:
    """Return how many GPUs a node has, in whichever way they are requested."""
    sbatch = _options(spec)
    if spec.resources is not None and spec.resources.gpus_per_node is not None:
        return spec.resources.gpus_per_node
    if "gpus-per-node" in sbatch:
        return count_gpus(sbatch["gpus-per-node"])
    return count_gres_gpus(sbatch["gres"]) if "gres" in sbatch else None


def _gpu_options(
    resources: ResourcesSpec, site: SiteConfig, sbatch: Mapping[str, str]
) -> tuple[str | None, str | None]:
    """Return the values of --gpus-per-node and of --gres."""
    option, gres = sbatch.get("gpus-per-node"), sbatch.get("gres")
    if resources.gpus_per_node is None:
        return option, gres
    others = without_gpus(gres) if gres else None
    if site.gpu_request == "none" or resources.gpus_per_node == 0:
        return None, others
    if site.gpu_request == "gpus_per_node":
        return str(resources.gpus_per_node), others
    name = site.gpu_request.removeprefix("gres:")
    return None, ",".join(filter(None, [f"{name}:{resources.gpus_per_node}", others]))


def _memory_options(
    resources: ResourcesSpec, site: SiteConfig, sbatch: Mapping[str, str], cpus: int | None
) -> dict[str, str]:
    """Return at most one of --mem, --mem-per-cpu and --mem-per-gpu, with its value."""
    lifted = {
        option: read_memory(value) for option, value in sbatch.items() if option.startswith("mem") and option in _LIFTED
    }
    memory = resources.memory_per_node
    if memory is None:
        return lifted
    if site.memory_request == "none":
        return {}
    if site.memory_request == "mem" or memory == "0":
        return {"mem": memory}
    if cpus is None:
        reason = f"site {site.name} asks for memory by CPU"
        raise JobError([f"resources.memory_per_node: expected resources.cpus_per_worker too, since {reason}"])
    return {"mem-per-cpu": format_slurm_memory(-(-parse_slurm_memory(memory) // cpus))}
