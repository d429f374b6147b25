"""Lines of `#SBATCH` as keys of a job file; pure. Source: https://slurm.schedmd.com/sbatch.html."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from hpc_elastic.job.names import fit_name
from hpc_elastic.job.sbatch_options import (
    count_gpus,
    count_gres_gpus,
    long_name,
    normalize_option,
    read_count,
    read_memory,
)
from hpc_elastic.moving_in.moved import Moved
from hpc_elastic.moving_in.shell import split_words
from hpc_elastic.units import format_duration, parse_duration

_LOGS = "the run directory has the output of every rank and of the script: `hpc-elastic logs`"
_FLAGS = frozenset(
    {
        *(
            "exclusive",
            "requeue",
            "no-requeue",
            "overcommit",
            "oversubscribe",
            "contiguous",
            "hold",
            "no-kill",
            "quiet",
        ),
        *(
            "verbose",
            "wait",
            "test-only",
            "get-user-env",
            "spread-job",
            "use-min-nodes",
            "reboot",
            "disable-stdout-job-summary",
        ),
        *("kill-on-invalid-dep", "ignore-pbs", "parsable", "label", "unbuffered", "exact", "overlap", "pty"),
        *("kill-on-bad-exit", "preserve-env", "multi-prog", "container-mount-home", "no-container-mount-home"),
        *("container-writable", "container-remap-root"),
    }
)
_SHORT_FLAGS = "HIkOsQvWlu"
_COUNTS = {"ntasks": "tasks", "ntasks-per-node": "tasks_per_node", "tasks-per-node": "tasks_per_node"}
_COUNTS |= {"cpus-per-task": "cpus_per_task", "cpus-per-gpu": "cpus_per_gpu"}


@dataclass(frozen=True, slots=True)
class Directive:
    """One option of a `#SBATCH` line: its long name as sbatch has it, and its value, None for an option without one."""

    line: int
    option: str
    value: str | None

    @property
    def text(self) -> str:
        """Return the option for people."""
        return f"--{self.option}" + (f"={self.value}" if self.value is not None else "")


@dataclass(slots=True)
class ResourceRequest:
    """What the script asks Slurm for, by which launchers count; None: it does not say."""

    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    cpus_per_gpu: int | None = None
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    gpus: int | None = None
    gpu_type: str | None = None  # of gpus_per_task or gpus

    def count_nodes(self) -> int:
        """Return the number of nodes, of which Slurm gives at least one."""
        if self.nodes:
            return self.nodes
        if self.tasks and self.tasks_per_node:
            return max(1, -(-self.tasks // self.tasks_per_node))
        return 1

    def count_tasks(self) -> int | None:
        """Return the number of tasks on a node; None if the script leaves it open."""
        if self.tasks_per_node:
            return self.tasks_per_node
        if self.tasks:
            return max(1, -(-self.tasks // self.count_nodes()))
        return None

    def count_gpus(self) -> int | None:
        """Return the number of GPUs of a node; None if the script asks for none."""
        if self.gpus_per_node is not None:
            return self.gpus_per_node
        if self.gpus is not None:
            return max(1, self.gpus // self.count_nodes())
        if self.gpus_per_task is not None:
            return self.gpus_per_task * (self.count_tasks() or 1)
        return None


def read_directives(text: str) -> Iterator[Directive | tuple[int, str]]:
    """Yield the options of a script; a line that cannot be read as its number and text.

    sbatch stops looking at the first line that is neither empty nor a comment: what stands below it, it ignores.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("#"):
            if line.strip():
                return
            continue
        if not line.startswith("#SBATCH"):
            continue
        words = split_words(line.removeprefix("#SBATCH"))
        if not words:
            yield number, line
            continue
        yield from read_options(words, number)


def read_options(words: list[str], number: int) -> Iterator[Directive | tuple[int, str]]:
    """Yield the options in words, as sbatch and srun take them; a word that is none as the line's number and itself."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        found: str | None = value if equals else None
        if not word.startswith("-") or word in ("-", "--"):
            yield number, word
            continue
        if re.fullmatch(rf"-[{_SHORT_FLAGS}]{{2,}}", word):  # -vv, -Qv
            yield from (Directive(number, long_name(letter), None) for letter in dict.fromkeys(word[1:]))
            continue
        if not word.startswith("--") and len(word) > 2:  # -N4, -N=4
            name, found = word[:2], word[2:].removeprefix("=")
        option = long_name(name)
        is_flag = option in _FLAGS or (len(name) == 2 and name[1] in _SHORT_FLAGS)
        if found is None and not is_flag and rest and not re.match(r"--?[A-Za-z]", rest[0]):
            found = rest.pop(0)
        yield Directive(number, option, found)


def carry_directive(directive: Directive, moved: Moved, request: ResourceRequest) -> None:
    """Put one option of sbatch into the job file, or say why it is not there."""
    try:
        if directive.option in _NOT_NEEDED:
            moved.not_needed(directive.line, directive.text, _NOT_NEEDED[directive.option])
        elif directive.option in _CARRIERS:
            _CARRIERS[directive.option](directive, moved, request)
        else:
            value = directive.value
            moved.sbatch[normalize_option(directive.option)] = True if value is None else value
    except ValueError as error:
        moved.not_carried(directive.line, directive.text, _why(error))


def _why(error: ValueError) -> str:
    return str(error).removeprefix("sbatch's ")


def _name(directive: Directive, moved: Moved, _: ResourceRequest) -> None:
    text = directive.value or ""
    name = fit_name(re.sub(r"%\w", "-", text))
    if name != text:
        moved.changed(directive.line, directive.text, f"a run's name has letters, digits, dots and dashes: {name}")
    moved.keys["name"] = name


def _nodes(directive: Directive, moved: Moved, request: ResourceRequest) -> None:
    least, dash, most = (directive.value or "").partition("-")
    request.nodes = read_count(most if dash else least)
    is_range = dash and most != least
    moved.keys["nodes"] = {"min": read_count(least), "max": request.nodes} if is_range else request.nodes


def _count(directive: Directive, _: Moved, request: ResourceRequest) -> None:
    setattr(request, _COUNTS[directive.option], read_count(directive.value or ""))


def _gpus(directive: Directive, moved: Moved, request: ResourceRequest) -> None:
    text = directive.value or ""
    kind, colon, _ = text.rpartition(":")
    setattr(request, directive.option.replace("-", "_"), count_gpus(text))
    if colon and directive.option == "gpus-per-node":
        moved.sbatch["gpus-per-node"] = text
    elif "," in text:
        moved.not_carried(directive.line, directive.text, "sbatch: {gpus-per-node: TYPE:COUNT} asks for a type")
    elif colon:
        request.gpu_type = kind


def _gres(directive: Directive, moved: Moved, request: ResourceRequest) -> None:
    text = directive.value or ""
    parts = [part.split(":") for part in text.split(",")]
    gpus = [part for part in parts if part[0] == "gpu"]
    request.gpus_per_node = count_gres_gpus(text)
    if len(parts) > 1 or len(gpus) != 1 or len(gpus[0]) > 2:  # a type, or something else beside: as it was written
        moved.sbatch["gres"] = text


def _time(directive: Directive, moved: Moved, _: ResourceRequest) -> None:
    text = directive.value or ""
    if re.fullmatch(r"\d+", text, re.ASCII):
        text = format_duration(timedelta(minutes=int(text)))
    if text.upper() in ("INFINITE", "UNLIMITED"):
        raise ValueError("a run has a limit; without the key it is the partition's")
    parse_duration(text)
    moved.keys["time"] = text


def _memory(directive: Directive, moved: Moved, _: ResourceRequest) -> None:
    text = directive.value or ""
    moved.keys["resources.memory_per_node"] = text if text == "0" else read_memory(text)


def _exclusive(directive: Directive, moved: Moved, _: ResourceRequest) -> None:
    if directive.value is None:
        moved.keys["resources.exclusive"] = True
    else:
        moved.sbatch["exclusive"] = directive.value


def _no_requeue(_: Directive, moved: Moved, __: ResourceRequest) -> None:
    moved.keys["requeue.max"] = 0


def _workdir(directive: Directive, moved: Moved, _: ResourceRequest) -> None:
    moved.keys["workdir"] = (directive.value or ".").replace("$", "$$")


def _array(directive: Directive, moved: Moved, _: ResourceRequest) -> None:
    why = (
        "a run is one job, without SLURM_ARRAY_TASK_ID; "
        "`hpc-elastic submit job.yaml --array NAME=VALUES` makes an array of runs, in which that counts from 0"
    )
    moved.not_carried(directive.line, directive.text, why)


def _export(directive: Directive, moved: Moved, _: ResourceRequest) -> None:
    if (directive.value or "").upper() == "ALL":
        moved.not_needed(directive.line, directive.text, "it is so in any case")
    else:
        why = "the job starts as its site says; what the training needs of your shell belongs into setup and env"
        moved.not_carried(directive.line, directive.text, why)


def _signal(directive: Directive, moved: Moved, _: ResourceRequest) -> None:
    match = re.fullmatch(r"(?:([BR]+):)?(?:SIG)?([A-Z0-9]+)(?:@(\d{1,6}))?", (directive.value or "").upper())
    if match is None:
        raise ValueError("its value could not be read")
    whom, name, seconds = match.groups()
    moved.keys["signals.lead"] = f"{int(seconds or 60)}s"
    if whom and "B" in whom:
        why = "ranks learn of it by notice_received(), or by a signal that signals.notice names; no trap is needed"
        moved.changed(directive.line, directive.text, why)
    elif name in ("USR1", "USR2"):
        moved.keys["signals.notice"] = name
    else:
        moved.changed(directive.line, directive.text, "ranks get TERM when signals.grace begins; signals.notice: USR2")


_NOT_NEEDED = {
    **dict.fromkeys(("output", "error", "open-mode"), _LOGS),
    **dict.fromkeys(("requeue", "no-kill"), "the job is submitted so; requeue.max and requeue.on say when"),
    **dict.fromkeys(("verbose", "quiet"), "it is about what sbatch itself says"),
}
_CARRIERS: dict[str, Callable[[Directive, Moved, ResourceRequest], None]] = {
    "job-name": _name,
    "nodes": _nodes,
    **dict.fromkeys(_COUNTS, _count),
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task"), _gpus),
    "gres": _gres,
    "time": _time,
    "mem": _memory,
    "exclusive": _exclusive,
    "no-requeue": _no_requeue,
    "signal": _signal,
    "chdir": _workdir,
    "array": _array,
    "export": _export,
}
