"""Says of every value of a job where it came from: the job file, the site file, or the package's default; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from hpc_elastic.job.defaults import DEFAULTS, default_grace, default_lead
from hpc_elastic.job.problems import KeyPath, format_path
from hpc_elastic.job.spec import JobDefaults, JobSpec, Section
from hpc_elastic.resolve.merge import merge_sections, without_rivals
from hpc_elastic.site.config import SiteConfig
from hpc_elastic.units import format_duration

# What a site file says of the site, of all its jobs by `defaults`, or of what a job may not ask for.
_OF_NO_VALUE = (
    *("name", "contact", "url", "last_checked", "scheduler", "clusters", "hostnames"),
    *("defaults", "required", "partitions", "qos"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOrigin:
    """A key with its value as text; `place` is the key's path in the file that it came from."""

    key: str
    value: str
    source: Literal["job", "site", "default"]
    place: KeyPath = ()


def find_origins(job: JobSpec, site: SiteConfig) -> Iterator[KeyOrigin]:
    """Yield every value of the job, then what the site says of itself; keys without a value are left out.

    What `resources:` of the job replaces in the site's `sbatch:` is not there, as in the job itself.
    """
    lower = without_rivals(site.defaults, job)
    asked = merge_sections(job, lower)
    for path, value in _leaves(merge_sections(asked, _defaults(asked))):
        if path[0] == "setup":
            yield from _setup(job, lower)
        elif _value_at(job, path) is not None:
            yield _origin(path, value, "job", path)
        elif _value_at(lower, path) is not None:
            yield _origin(path, value, "site", ("defaults", *path))
        else:
            yield _origin(path, value, "default", ())
    for path, value in _leaves(site):
        if path[0] not in _OF_NO_VALUE and _is_given(site, path):
            yield _origin(("site", *path), value, "site", path)


def _defaults(asked: JobSpec) -> JobDefaults:
    """Return the package's defaults, those among them that go by the time limit as they are for this job."""
    signals, given = DEFAULTS.signals, asked.signals
    lead = given.lead if given is not None and given.lead is not None else default_lead(asked.time)
    own = {"lead": default_lead(asked.time), "grace": default_grace(lead)}
    return DEFAULTS.model_copy(update={"signals": signals and signals.model_copy(update=own)})


def _origin(path: KeyPath, value: Any, source: Literal["job", "site", "default"], place: KeyPath) -> KeyOrigin:
    return KeyOrigin(key=format_path(path), value=_text(value), source=source, place=place)


def _setup(job: JobSpec, lower: JobDefaults) -> Iterator[KeyOrigin]:
    lines = [(line, "site", index) for index, line in enumerate(lower.setup or ())]
    if "setup" in job.model_fields_set and job.setup is None:
        lines = []
    for number, (line, _, index) in enumerate(lines):
        yield _origin(("setup", number), line, "site", ("defaults", "setup", index))
    for index, line in enumerate(job.setup or ()):
        yield _origin(("setup", len(lines) + index), line, "job", ("setup", index))


def _leaves(section: Section, above: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the path of every value that is there; of `nodes` the whole map, of env and sbatch each entry."""
    for name in type(section).model_fields:
        value, path = getattr(section, name, None), (*above, name)
        if isinstance(value, Section) and name != "nodes":
            yield from _leaves(value, path)
        elif isinstance(value, Mapping):
            yield from ((((*path, key)), entry) for key, entry in value.items() if entry is not None)
        elif value is not None and value != "":
            yield path, value


def _value_at(section: Any, path: KeyPath) -> Any:
    for part in path:
        section = section.get(part) if isinstance(section, Mapping) else getattr(section, str(part), None)
    return section


def _is_given(section: Section, path: KeyPath) -> bool:
    inner: Any = section
    for part in path:
        if not isinstance(inner, Section) or part not in inner.model_fields_set:
            return False
        inner = getattr(inner, str(part))
    return True


def _text(value: Any) -> str:
    """Return a value as a job file spells it, nearly."""
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Section):
        inner = {name: getattr(value, name) for name in type(value).model_fields}
        if set(inner) == {"min", "max"} and inner["min"] == inner["max"]:
            return str(inner["max"])
        return "{" + ", ".join(f"{name}: {_text(one)}" for name, one in inner.items() if one is not None) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_text, value)) + "]"
    return str(value)
