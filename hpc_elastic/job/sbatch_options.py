"""Options of sbatch as a job file's `sbatch:` map names them: one spelling, ours refused, resources lifted out.

A job file may say `-p`, `--partition`, `partition` or `mem_per_cpu`; getopt_long also takes abbreviations. Options
that a key of ours says are refused in every spelling, with that key's name: given twice, the agents
and Slurm would go by different values. See https://slurm.schedmd.com/sbatch.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hpc_elastic.units import format_slurm_memory, parse_slurm_memory

_SHORT = {
    "A": "account",
    "a": "array",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "h": "help",
    "I": "immediate",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "S": "core-spec",
    "s": "oversubscribe",
    "t": "time",
    "V": "version",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}
_ALWAYS_SET = "set by hpc_elastic itself; leave it out"
_IN_RUN_DIRECTORY = "output goes to the run directory; leave it out"
REFUSED = {
    "nodes": "use the key nodes",
    "ntasks": "one task a node is started; use the key workers_per_node",
    "ntasks-per-node": "one task a node is started; use the key workers_per_node",
    "ntasks-per-core": "one task a node is started; use the key workers_per_node",
    "ntasks-per-gpu": "one task a node is started; use the key workers_per_node",
    "ntasks-per-socket": "one task a node is started; use the key workers_per_node",
    "tasks-per-node": "one task a node is started; use the key workers_per_node",
    "time": "use the key time",
    "job-name": "use the key name",
    "output": _IN_RUN_DIRECTORY,
    "error": _IN_RUN_DIRECTORY,
    "open-mode": _IN_RUN_DIRECTORY,
    "signal": "use the keys signals.notice and signals.lead",
    "array": "a run is one job; `hpc-elastic submit --array` makes an array of runs",
    "clusters": "set SLURM_CLUSTERS in your shell: status and cancel have to ask the same cluster",
    "no-kill": _ALWAYS_SET,
    "requeue": "use the key requeue",
    "no-requeue": "use the key requeue",
    "chdir": "use the key workdir",
    "gpus": "use the key resources.gpus_per_node",
    "gpus-per-task": "use the key resources.gpus_per_node",
    "gpus-per-socket": "use the key resources.gpus_per_node",
    "cpus-per-gpu": "use the key resources.cpus_per_worker",
    "wait": "use hpc-elastic submit --wait",
    "test-only": "use hpc-elastic check",
    "wrap": "use the key entrypoint",
    "help": "it is no option of a job",
    "usage": "it is no option of a job",
    "version": "it is no option of a job",
    "parsable": _ALWAYS_SET,
}
_HETEROGENEOUS = ("het", "pack", ":")  # hetjob, het-group, and what they were called before Slurm 20.02
OPTION_PATTERN = r"^-{0,2}[A-Za-z][A-Za-z0-9_-]*$"  # as it may be written

MEMORY_OPTIONS = ("mem", "mem-per-cpu", "mem-per-gpu")
_LIFTED = ("cpus-per-task", "gpus-per-node", "gres", *MEMORY_OPTIONS)
# The options that ask for the same as a key of `resources:`; of gres, the part that names GPUs.
SAME_AS_RESOURCE: Mapping[str, Sequence[str]] = {
    "cpus_per_worker": ("cpus-per-task",),
    "gpus_per_node": ("gpus-per-node", "gres"),
    "memory_per_node": MEMORY_OPTIONS,
    "exclusive": ("exclusive",),
}
# Whole names of options that refused ones begin like, so that they are no abbreviations of those.
_WHOLE = frozenset({*_SHORT.values(), *_LIFTED, "time-min"})


def normalize_option(name: str) -> str:
    """Return the long name, without dashes in front, of an option in any spelling.

    Raises:
        ValueError: it is not an option, asks for a heterogeneous job, or a key of ours stands for it.
    """
    option = long_name(name)
    if option.startswith(_HETEROGENEOUS):
        raise ValueError("heterogeneous jobs are not supported")
    if not re.fullmatch(OPTION_PATTERN, name, re.A) or name.endswith("\n"):
        raise ValueError("expected the name of an option of sbatch, such as account")
    refused = option if option in REFUSED else _abbreviated(option)
    if refused:
        raise ValueError(f"sbatch's --{refused} does not belong here: {REFUSED[refused]}")
    lifted = None if option in _WHOLE else next((whole for whole in _LIFTED if whole.startswith(option)), None)
    if lifted:
        raise ValueError(f"expected the whole name of the option, {lifted}")
    return option


def long_name(name: str) -> str:
    """Return the long name, without dashes in front, of an option in any spelling, whether it is one or not."""
    bare = name.lstrip("-").replace("_", "-")
    return _SHORT.get(bare, bare) if len(bare) == 1 else bare.lower()


def _abbreviated(option: str) -> str | None:
    """Return the refused option that getopt_long may take this one for."""
    if option in _WHOLE:
        return None
    return next((refused for refused in REFUSED if refused.startswith(option)), None)


def check_lifted(option: str, value: str) -> None:
    """Check the value of an option that is lifted into `resources`; any other is passed on as it is.

    Raises:
        ValueError: it is not a value of that option.
    """
    if option == "cpus-per-task":
        read_count(value)
    elif option == "gpus-per-node":
        count_gpus(value)
    elif option == "gres":
        count_gres_gpus(value)
    elif option in MEMORY_OPTIONS:
        parse_slurm_memory(value)


def read_count(text: str) -> int:
    """Return the number of at least 1 that a text is.

    Raises:
        ValueError: the text is not such a number.
    """
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text, re.A):
        raise ValueError(f"expected a number of at least 1, found {text!r}")
    return int(text)


def read_memory(text: str) -> str:
    """Return the amount of memory that a text in Slurm's own spelling is.

    Raises:
        ValueError: the text is not an amount of memory.
    """
    return format_slurm_memory(parse_slurm_memory(text))


def count_gpus(text: str) -> int:
    """Return the number of GPUs in `4`, `a100:4` or `a100:2,v100:2`.

    Raises:
        ValueError: the text has none of these forms.
    """
    return sum(read_count(part.rsplit(":", 1)[-1]) for part in text.split(","))


def count_gres_gpus(text: str) -> int | None:
    """Return the number of GPUs in a `--gres` such as `gpu:a100:4(S:0-1),lscratch:100`; None if it names no GPUs.

    Raises:
        ValueError: a count is not a number.
    """
    counts = []
    for part in filter(_is_gpu, _split_gres(text)):
        _, *rest = re.sub(r"\([^)]*\)", "", part).removeprefix("gres/").split(":")
        is_counted = len(rest) == 2 or (len(rest) == 1 and rest[0].isdigit())
        counts.append(read_count(rest[-1]) if is_counted else 1)
    return sum(counts) if counts else None


def without_gpus(gres: str) -> str | None:
    """Return what is left of a `--gres` without its GPUs; None if nothing is."""
    return ",".join(part for part in _split_gres(gres) if not _is_gpu(part)) or None


def _split_gres(text: str) -> list[str]:
    return re.split(r",(?![^(]*\))", text)  # a comma in parentheses lists sockets


def _is_gpu(part: str) -> bool:
    return re.match(r"(?:gres/)?gpu(?![A-Za-z0-9_-])", part, re.A) is not None


def find_doubles(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each name that is another spelling of an earlier option, with the earlier name."""
    seen: dict[str, str] = {}
    for name in names:
        try:
            option = normalize_option(name)
        except ValueError:  # wrong by itself, which the model reports
            continue
        if option in seen:
            yield name, seen[option]
        seen.setdefault(option, name)
