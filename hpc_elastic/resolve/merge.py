"""Merges job, site and the package's defaults into one set of keys, in which no resource is requested twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from hpc_elastic.job.sbatch_options import SAME_AS_RESOURCE, count_gres_gpus, without_gpus
from hpc_elastic.job.spec import JobDefaults, NodesSpec, ResourcesSpec, Section

Upper = TypeVar("Upper", bound=Section)


def merge_sections(upper: Upper, lower: Section) -> Upper:
    """Merge two sections: the values of `upper`, and those of `lower` for keys that `upper` does not give.

    Maps are merged key by key, `setup` has the lines of `lower` first, any other list or value is
    taken whole. A key that is null in `upper` removes the value of `lower` and is left unset.
    """
    merged = {}
    for name in type(upper).model_fields:
        value = getattr(upper, name)
        if value is None and name in upper.model_fields_set:
            continue
        value = _merge_values(name, value, getattr(lower, name, None))
        if value is not None:
            merged[name] = value
    return type(upper).model_construct(**merged)


def _merge_values(name: str, upper: Any, lower: Any) -> Any:
    either = lower if upper is None else upper
    # {min, max} belong together: a site's max would contradict a job's min.
    if isinstance(either, Section) and not isinstance(either, NodesSpec):
        nothing = type(either)()
        return merge_sections(upper or nothing, lower or nothing)
    if isinstance(either, Mapping):  # env, sbatch: null removes an entry
        return {key: value for key, value in {**(lower or {}), **(upper or {})}.items() if value is not None}
    if name == "setup" and upper is not None and lower is not None:
        return (*lower, *upper)
    return either


def without_rivals(lower: JobDefaults, upper: JobDefaults) -> JobDefaults:
    """Return a site's defaults without those that request, in another way, a resource that the job requests."""
    resources = lower.resources or ResourcesSpec()
    sbatch = dict(lower.sbatch or {})
    for key, options in SAME_AS_RESOURCE.items():
        if not _asks(upper, key):
            continue
        resources = resources.model_copy(update={key: None})
        for option in options:
            left = without_gpus(sbatch[option] or "") if option == "gres" and option in sbatch else None
            sbatch.pop(option, None)
            if left:
                sbatch[option] = left
    return lower.model_copy(update={"resources": resources, "sbatch": sbatch})


def _asks(spec: JobDefaults, resource: str) -> bool:
    if getattr(spec.resources, resource, None) is not None:
        return True
    given = {option: value for option, value in (spec.sbatch or {}).items() if value is not None}
    return any(
        option in given and (option != "gres" or count_gres_gpus(given[option]) is not None)
        for option in SAME_AS_RESOURCE[resource]
    )
