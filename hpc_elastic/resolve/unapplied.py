"""Finds the keys of a job that have no effect on this machine, because no scheduler grants what they request."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_elastic.job.sbatch_options import count_gres_gpus
from hpc_elastic.job.spec import JobSpec, ResourcesSpec
from hpc_elastic.resolve.merge import merge_sections, without_rivals
from hpc_elastic.site.config import SiteConfig

# They are what `cpus_per_worker` and `gpus_per_node` are, and agents act on those.
_AS_OUR_KEYS = frozenset({"cpus-per-task", "gpus-per-node"})


def find_unapplied(job: JobSpec, site: SiteConfig) -> tuple[str, ...]:
    """Return these keys, of the job or of the site's defaults; none where the scheduler is Slurm."""
    return (
        () if site.scheduler == "slurm" else tuple(_unapplied(merge_sections(job, without_rivals(site.defaults, job))))
    )


def _unapplied(asked: JobSpec) -> Iterator[str]:
    resources = asked.resources or ResourcesSpec()
    if resources.memory_per_node is not None:
        yield "resources.memory_per_node"
    if resources.exclusive:
        yield "resources.exclusive"
    if asked.requeue is not None:
        yield "requeue"
    for option, value in (asked.sbatch or {}).items():
        is_gpus = option == "gres" and value is not None and count_gres_gpus(value) is not None
        if value is not None and option not in _AS_OUR_KEYS and not is_gpus:
            yield f"sbatch.{option}"
