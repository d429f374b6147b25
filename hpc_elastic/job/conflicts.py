"""Combinations of keys that cannot work, each fine by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import NamedTuple

from hpc_elastic.job.defaults import DEFAULTS, default_grace, default_lead, find_not_built
from hpc_elastic.job.problems import KeyPath, format_path
from hpc_elastic.job.sbatch_options import SAME_AS_RESOURCE, check_lifted, count_gres_gpus
from hpc_elastic.job.spec import (
    EntrypointSpec,
    JobDefaults,
    JobSpec,
    NodesSpec,
    ResourcesSpec,
    RestartSpec,
    SignalsSpec,
)
from hpc_elastic.plan.log_prefix import PREFIX_VARIABLE, check_prefix
from hpc_elastic.units import format_duration


class Conflict(NamedTuple):
    """A conflict at `path`; it is not reported if one of the keys `about` has a problem of its own."""

    path: KeyPath
    message: str
    about: tuple[str, ...]


def find_conflicts(spec: JobDefaults) -> Iterator[Conflict]:
    """Yield every combination of keys, given or by default, that cannot work; and keys that are not built yet."""
    if not (isinstance(spec, JobSpec) and spec.roles):
        yield from check_nodes(spec.nodes, spec.workers_per_node, spares=spec.spares or 0)
    yield from _restart(spec.restart or RestartSpec())
    yield from _signals(spec.signals or SignalsSpec(), spec.time)
    yield from _sbatch(spec)
    yield from _prefix(spec)
    yield from _start(spec)
    for path in find_not_built(spec):
        yield Conflict(path, "not supported yet; leave it out", ())


def check_entrypoint(entrypoint: EntrypointSpec | None, at: KeyPath = ()) -> Iterator[Conflict]:
    """Yield the conflicts of an entrypoint, the job's or that of the role at a path: it must name one thing to run."""
    path = (*at, "entrypoint")
    about = (format_path(path),) if at else ("entrypoint", "roles")
    kinds = ("script", "module", "command", "function")
    given = [kind for kind in kinds if getattr(entrypoint, kind, None) is not None]
    if entrypoint is None:
        yield Conflict(path, "missing; expected a map with script, module or command", about)
    elif len(given) != 1:
        message = f"expected exactly one of script, module and command, found {' and '.join(given) or 'none'}"
        yield Conflict(path, message, about)
    elif given == ["function"]:
        for key in ("args", "restart_args"):
            if getattr(entrypoint, key):
                message = "a function takes no command line; give its arguments to hpc_elastic.submit(function, ...)"
                yield Conflict((*path, key), message, ())


def check_nodes(
    nodes: NodesSpec | None, workers: int | tuple[int, ...] | str | None, *, spares: int = 0, at: KeyPath = ()
) -> Iterator[Conflict]:
    """Yield the conflicts of the numbers of nodes, workers and spares, of the job or of the role at a path."""
    nodes = nodes or DEFAULTS.nodes
    if nodes is None:
        return
    about = format_path((*at, "nodes"))
    if nodes.min > nodes.max:
        message = f"expected at most nodes.max, which is {nodes.max}, found {nodes.min}"
        yield Conflict((*at, "nodes", "min"), message, (about,))
    most = max(nodes.min, nodes.max) + spares
    if isinstance(workers, tuple) and len(workers) > most:
        message = f"expected at most {most} numbers, one for each node, found {len(workers)}"
        yield Conflict((*at, "workers_per_node"), message, (about, "spares"))


def _restart(restart: RestartSpec) -> Iterator[Conflict]:
    default = DEFAULTS.restart.backoff if DEFAULTS.restart else None
    backoff = restart.backoff
    if backoff is None or default is None or backoff.first is None:
        return
    longest = default.max if backoff.max is None else backoff.max
    if longest is not None and backoff.first > longest:
        expected = f"expected at most restart.backoff.max, which is {format_duration(longest)}"
        message = f"{expected}, found {format_duration(backoff.first)}"
        yield Conflict(("restart", "backoff", "first"), message, ("restart",))


def _signals(signals: SignalsSpec, time: timedelta | None) -> Iterator[Conflict]:
    lead = default_lead(time) if signals.lead is None else signals.lead
    grace = default_grace(lead) if signals.grace is None else signals.grace
    if time is not None and lead > time / 2:
        expected = f"expected at most half of time, which is {format_duration(time / 2)}"
        message = f"{expected}, found {format_duration(lead)}"
        yield Conflict(("signals", "lead"), message, ("signals", "time"))
    if grace > lead:
        origin = "whose default here is" if signals.lead is None else "which is"
        expected = f"expected at most signals.lead, {origin} {format_duration(lead)}"
        about = ("signals", "time") if signals.lead is None else ("signals",)
        yield Conflict(("signals", "grace"), f"{expected}, found {format_duration(grace)}", about)


def _prefix(spec: JobDefaults) -> Iterator[Conflict]:
    template = (spec.env or {}).get(PREFIX_VARIABLE)
    try:
        check_prefix((template or "").replace("$$", "$"))
    except ValueError as error:
        yield Conflict(("env", PREFIX_VARIABLE), str(error), ("env",))


def _start(spec: JobDefaults) -> Iterator[Conflict]:
    if spec.start != "fork" or not isinstance(spec, JobSpec):
        return
    entrypoints = {"entrypoint": spec.entrypoint}
    entrypoints |= {f"roles[{index}].entrypoint": role.entrypoint for index, role in enumerate(spec.roles or ())}
    for name, entrypoint in entrypoints.items():
        if entrypoint is not None and entrypoint.command is not None:
            message = f"expected auto or spawn, found fork: {name}.command is a program, and only Python can be forked"
            yield Conflict(("start",), message, ("start", name))


def _sbatch(spec: JobDefaults) -> Iterator[Conflict]:
    given = {option: value for option, value in (spec.sbatch or {}).items() if value is not None}
    is_right = True
    for option, value in given.items():
        try:
            check_lifted(option, value)
        except ValueError as error:
            is_right = False
            yield Conflict(("sbatch", option), str(error), ())
    if is_right:
        for names in _ways_to_ask(spec.resources or ResourcesSpec(), given):
            if len(names) > 1:
                message = f"expected one way to ask for this, found {' and '.join(names)}"
                yield Conflict(tuple(names[-1].split(".")), message, ("sbatch", "resources"))


def _ways_to_ask(resources: ResourcesSpec, given: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield for each resource the keys that ask for it: ours first, then sbatch's."""
    names_gpus = "gres" in given and count_gres_gpus(given["gres"]) is not None
    for key, options in SAME_AS_RESOURCE.items():
        ours = [f"resources.{key}"] if getattr(resources, key) is not None else []
        rivals = [option for option in options if option in given and (option != "gres" or names_gpus)]
        yield ours + [f"sbatch.{option}" for option in rivals]
