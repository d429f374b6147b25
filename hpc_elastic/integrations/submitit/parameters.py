"""Converts the parameters of `update_parameters` to job file keys: names of submitit, its Slurm executor, and ours.

Names of submitit mean what they mean there: times are minutes, memory is in GB and of a node, and a node
has one task by default. If two names mean the same thing, the more specific one counts: a
key of job.yaml before a name of submitit's Slurm executor, and that before one of submitit's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

OUR_PREFIX, SLURM_PREFIX = "hpcelastic_", "slurm_"
DEFAULT_NAME = "submitit"
GENERIC = frozenset(
    {"name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "stderr_to_stdout"}
)
# Names of submitit's Slurm executor that differ from submitit's own names, but mean the same here.
_SAME = {"job_name": "name", "ntasks_per_node": "tasks_per_node", "num_gpus": "gpus_per_node"}
# Passed on to sbatch; those for which job.yaml has a key are refused there, with that key's name.
_SBATCH = frozenset(
    {"account", "comment", "constraint", "cpus_per_gpu", "dependency", "exclude", "gpus_per_task", "gres"}
    | {"mail_type", "mail_user", "mem_per_cpu", "mem_per_gpu", "nodelist", "partition", "qos", "wckey"}
)
_DURATIONS_AND_SIZES = frozenset({"timeout_min", "time", "mem_gb", "mem", "signal_delay_s"})
# Handled by this package itself; these are in no job file.
OWN = frozenset({"array_parallelism", "signal_delay_s"})
_CONVERTED = frozenset({"additional_parameters", "exclusive", "mem", "time", *_SAME, *OWN})
_REFUSED = {
    "teardown": "nothing runs after the workers; put it into the function, or into a template of yours",
    "srun_args": "the agents are started by one srun of the template; a site file's `srun` key adds arguments to it",
    "use_srun": "the agents are started by srun, and the function may well submit other jobs",
    "entrypoint": "the function is what a worker runs",
    "roles": "all workers run the function; a job.yaml has roles",
}


# The keys of job.yaml, except those that say what a worker runs. They are repeated here because submitit asks every
# executor for its names whichever one is used, and the job's own types take 100 ms to import.
JOB_KEYS = frozenset(
    {"binding", "container", "elastic", "env", "health", "log_level", "logs", "metrics", "name", "nodes", "preload"}
    | {"progress", "python", "requeue", "resources", "restart", "role", "sbatch", "setup", "signals", "site", "spares"}
    | {"stage", "stall_timeout", "start", "state", "start_timeout", "template", "time", "virtual_local_rank", "workdir"}
    | {"snapshot", "worker_env", "workers_per_node"}
)
SLURM_NAMES = _SBATCH | _CONVERTED | {"setup"}


class ParameterNames(set[str]):
    """The set of names that may follow `hpcelastic_`; iteration omits those that submitit's own executors have too.

    AutoExecutor (1.5.4) iterates over the names of every executor to find the owner of a parameter without a
    prefix, and the last executor gets it: `partition=...` would be taken away from the Slurm executor.
    """

    def __init__(self) -> None:
        super().__init__(JOB_KEYS | SLURM_NAMES)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(JOB_KEYS - SLURM_NAMES))


def check_names(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Check the parameters; return them without prefixes, and without those that are None, which means not given.

    Raises:
        ValueError: a parameter has no meaning here, or is NaN, infinite or negative where it is a duration or a size.
    """
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        plain = name.removeprefix(OUR_PREFIX).removeprefix(SLURM_PREFIX)
        if value is None or (plain == "use_srun" and value is True):
            continue
        if plain in _REFUSED:
            raise ValueError(f"the parameter {name} means nothing to the executor hpcelastic: {_REFUSED[plain]}")
        if plain in _DURATIONS_AND_SIZES and isinstance(value, (int, float)) and not 0 <= value < float("inf"):
            raise ValueError(f"the parameter {name} is {value!r}, expected a number, 0 or more")
        found[plain] = value
    valid = GENERIC | SLURM_NAMES | JOB_KEYS
    if unknown := sorted(set(found) - valid):
        listed = "\n  - ".join(sorted(valid))
        raise ValueError(f"Unavailable parameter(s): {unknown}\nValid parameters are:\n  - {listed}")
    if "num_gpus" in found:
        warnings.warn('"num_gpus" is deprecated, please use "gpus_per_node" instead', stacklevel=4)
    return found


def job_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job without its entrypoint; it has `env` and `site` only if given, and the caller may add to them."""
    ours = {name: value for name, value in parameters.items() if name in JOB_KEYS - GENERIC - _CONVERTED}
    plain = {name: value for name, value in parameters.items() if name not in ours}
    plain = {**plain, **{_SAME[name]: value for name, value in plain.items() if name in _SAME}}
    job: dict[str, Any] = {"name": plain.get("name", DEFAULT_NAME), "nodes": plain.get("nodes", 1)}
    job["workers_per_node"] = plain.get("tasks_per_node", 1)
    if (time := _time(plain)) is not None:
        job["time"] = time
    if resources := dict(_resources(plain)):
        job["resources"] = resources
    if sbatch := dict(_sbatch(plain)):
        job["sbatch"] = sbatch
    for name, value in ours.items():
        is_section = name in ("resources", "sbatch") and isinstance(value, Mapping)
        job[name] = {**job.get(name, {}), **value} if is_section else value
    return job


def _time(plain: Mapping[str, Any]) -> str | None:
    time = plain.get("time", plain.get("timeout_min"))
    if time is None or isinstance(time, str):
        return time
    return f"{round(time * 60)}s"


def _resources(plain: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if "gpus_per_node" in plain:
        yield "gpus_per_node", plain["gpus_per_node"]
    if "cpus_per_task" in plain:
        yield "cpus_per_worker", plain["cpus_per_task"]
    if "mem" in plain:
        yield "memory_per_node", plain["mem"] if isinstance(plain["mem"], str) else f"{plain['mem']}M"
    elif "mem_gb" in plain:
        yield "memory_per_node", f"{round(plain['mem_gb'] * 1024)}M"
    if isinstance(plain.get("exclusive"), bool):
        yield "exclusive", plain["exclusive"]


def _sbatch(plain: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _SBATCH & plain.keys():
        yield name.replace("_", "-"), plain[name]
    if isinstance(plain.get("exclusive"), str):
        yield "exclusive", plain["exclusive"]
    yield from dict(plain.get("additional_parameters") or {}).items()
