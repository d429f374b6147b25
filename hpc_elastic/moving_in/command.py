"""The command that starts the training, and what stands around it: srun, a shell, a container, a wrapper; pure.

Sources: the manuals of srun (Slurm 25.05) and mpirun (Open MPI 5).
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpc_elastic.moving_in.directives import Directive, ResourceRequest, carry_directive, read_options
from hpc_elastic.moving_in.moved import Moved
from hpc_elastic.moving_in.shell import (
    LITERAL,
    OUTER,
    expand,
    first_pipe,
    mark_literals,
    part_lists,
    split_words,
    statements,
    unmark_literals,
)

PYTHON = re.compile(r"python[0-9.]*")
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "ft_launcher")
_CONTAINERS = ("apptainer", "singularity", "docker", "podman", "shifter", "enroot", "charliecloud", "ch-run")
_RUNNERS = ("uv", "poetry", "pixi", "conda", "mamba", "micromamba", "pipenv", "hatch")
_PLAIN_WRAPPERS = ("time", "exec", "nohup", "command", "builtin")
_BINDERS = ("numactl", "taskset", "hwloc-bind", "likwid-pin", "nice", "ionice", "stdbuf", "timeout", "nsys", "ncu")
SHELLS = ("bash", "sh", "zsh")
_OF_MPIRUN = frozenset(
    {
        *("-np", "-n", "--np", "-ppn", "-x", "-H", "--host", "--hostfile", "-hostfile", "--bind-to", "--map-by"),
        *("-mca", "--mca"),
    }
)
NOTHING_BEHIND = "nothing runs behind the training in its job; a second job with --dependency can"
_NO_CONTAINER = "write it as container: {runtime, image, mounts}, without which workers run on the node itself"
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\w+|\{[^}]*\})", re.ASCII)
_COUNTED_BY_SLURM = frozenset({"nodes", "ntasks", "ntasks-per-node", "tasks-per-node"})
_OF_SRUN = {
    "label": "`hpc-elastic logs` names the rank of each line",
    "unbuffered": "the output of the ranks is never held back",
    "kill-on-bad-exit": "a rank that fails restarts or ends the run",
    "wait": "a rank that fails restarts or ends the run",
    "export": "the workers get the environment of the script",
    "mpi": "the ranks are started by the agents, without PMI; a training that needs MPI keeps its own launcher",
    "jobid": "the script runs in its job",
    "exact": "one step has the whole job",
    "overlap": "one step has the whole job",
    "exclusive": "one step has the whole job",
    "job-name": "the run has a name",
    "output": "each rank has a log of its own in the run directory",
    "error": "each rank has a log of its own in the run directory",
    "disable-status": "`hpc-elastic status` says how the ranks are",
    "quit-on-interrupt": "a Ctrl-C ends the watching, and `hpc-elastic cancel` the run",
}
# Short options that srun has and sbatch has not, or otherwise (srun(1)).
_SHORT_OF_SRUN = {
    "l": "label",
    "u": "unbuffered",
    "K": "kill-on-bad-exit",
    "X": "disable-status",
    "W": "wait",
}
# How deeply wrappers may be put into each other: deeper ones are no training, but an attack on this program.
MOST_WRAPPERS = 20


@dataclass(slots=True)
class Launch:
    """What a launcher starts: the target, how many workers a node, and what stands in the job file for its options.

    `workers` is a number, `auto`, or None where the launcher takes Slurm's tasks. `nodes` is what the launcher was
    told, None if it goes by Slurm.
    """

    line: int
    launcher: str = ""
    kind: str = "script"
    target: str = ""
    args: list[str] = field(default_factory=list)
    python: str | None = None
    workers: int | str | None = None
    nodes: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)  # what a shell around it does first
    is_one_a_task: bool = False
    is_under_srun: bool = False
    is_in_shell: bool = False  # a shell on each node expands what the words name


@dataclass(slots=True)
class Around:
    """What stands around the command: assignments, options of srun, a shell's own lines."""

    launch: Launch
    moved: Moved
    request: ResourceRequest
    known: Mapping[str, str] = field(default_factory=dict)  # variables, which a shell on a node knows as well
    is_under_srun: bool = False


def unwrap(words: list[str], around: Around) -> list[str]:
    """Return the command without what stands around it, which `around` gets; empty if no training is in it."""
    words = list(words)
    for _ in range(MOST_WRAPPERS):
        if not words:
            break
        program = os.path.basename(words[0])
        if match := _ASSIGNED.fullmatch(words[0]):
            around.launch.env[match[1]] = match[2]
            words = words[1:]
        elif _VARIABLE.fullmatch(words[0]) and (found := _next_command(words[1:])):
            why = "it could not be read, so ranks are started without it"
            around.moved.not_carried(around.launch.line, " ".join(words[: len(words) - len(found)]), why)
            words = found
        elif program in _TAKERS:
            words = _TAKERS[program](words, around)
        elif program in SHELLS and (inner := _inner_script(words)) is not None:
            words = _last_command(inner, around)
        else:
            return words
    return []


def _take_word(words: list[str], _: Around) -> list[str]:
    return words[1:]


def _take_env(words: list[str], _: Around) -> list[str]:
    words = words[1:]
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in ("-u", "--unset") else words[1:]
    return words


def _take_container(words: list[str], around: Around) -> list[str]:
    return _leave_out(words, around, _NO_CONTAINER)


def _take_runner(words: list[str], around: Around) -> list[str]:
    if "run" not in words[1:3]:
        return []
    return _leave_out(words, around, "name the Python of that environment, python: PATH, or activate it in setup")


def _take_binder(words: list[str], around: Around) -> list[str]:
    why = "ranks are started without it; binding: numa | cores | nearest binds them to CPUs"
    return _leave_out(words, around, why)


def _leave_out(words: list[str], around: Around, why: str) -> list[str]:
    """Return the words from the first one that starts a training, and name those before."""
    found = _next_command(words[1:])
    if found:
        what = unmark_literals(" ".join(words[: len(words) - len(found)]))
        around.moved.not_carried(around.launch.line, what, why)
    return found


def _next_command(words: list[str]) -> list[str]:
    """Return the words from the first one that a training is started by."""
    for place, word in enumerate(words):
        program = os.path.basename(word)
        if program in LAUNCHERS or program in SHELLS or PYTHON.fullmatch(program):
            return words[place:]
    return []


def _inner_script(words: list[str]) -> str | None:
    for place, word in enumerate(words[1:3], 1):
        if re.fullmatch(r"-[a-z]*c", word) and len(words) > place + 1:
            return words[place + 1].replace("$", OUTER).replace(LITERAL, "$")
    return None


def _last_command(script: str, around: Around) -> list[str]:
    """Return the words of the last command of a shell's script, whose earlier ones `around` gets."""
    script = _with_known(script, around.known)
    found = [each for each in statements(part_lists(script)) if not each.keyword]
    if not found:
        return []
    around.launch.is_in_shell = True
    starts = [place for place, each in enumerate(found) if _next_command(split_words(each.joined) or [])]
    chosen = starts[-1] if starts else len(found) - 1
    around.launch.before += [each.text.strip().replace(OUTER, "$") for each in found[:chosen]]
    command, tail = first_pipe(mark_literals(found[chosen].joined).replace(OUTER, "$"))
    for behind in (tail, *(each.joined for each in found[chosen + 1 :])):
        name_tail(around.launch.line, unmark_literals(behind), around.moved)
    return split_words(command) or []


def _with_known(script: str, known: Mapping[str, str]) -> str:
    """Return a shell's script with the values of variables that the shell around it has exported put in."""
    own = {name for each in statements(script) for name in each.assignments()}
    values = {name: expand(value, known) for name, value in known.items() if name not in own and f"${name}" in script}
    return expand(script, {name: value.replace("$", OUTER) for name, value in values.items()})


def name_tail(line: int, tail: str, moved: Moved) -> None:
    """Name what stands behind the training in its own line: redirections, pipes, and commands that follow."""
    if re.match(r"(&?>|[0-9]?>|\|\s*tee\b|[0-9]>&)", tail):
        moved.not_needed(line, tail, "the run directory has the output of every rank: `hpc-elastic logs`")
    elif tail not in ("", "&"):
        moved.not_carried(line, tail, NOTHING_BEHIND)


def _take_srun(words: list[str], around: Around) -> list[str]:
    """Read srun's options; return the command behind them."""
    around.is_under_srun, words = True, words[1:]
    end = 0
    options: list[Directive] = []
    while end < len(words) and words[end].startswith("-"):
        found, count = _next_of_srun(words[end : end + 2], around.launch.line)
        if found is None:
            break
        options.append(found)
        end += count
    for option in options:
        _carry_srun(option, around)
    return words[end + (words[end : end + 1] == ["--"]) :]


def _next_of_srun(words: list[str], line: int) -> tuple[Directive | None, int]:
    """Return the option that the words begin with, and how many of them it is; None if it is none."""
    took = words[0]
    short = None if took.startswith("--") else _SHORT_OF_SRUN.get(took[1:2])
    if took in ("-W", "--wait"):
        return Directive(line, "wait", words[1] if len(words) > 1 else None), 2
    if short:
        return Directive(line, short, took[2:].removeprefix("=") or None), 1
    found = next(read_options(words, line), None)
    if not isinstance(found, Directive):
        return None, 0
    separate = found.value is not None and "=" not in took and (took.startswith("--") or len(took) == 2)
    return found, 2 if separate else 1


def _carry_srun(option: Directive, around: Around) -> None:
    name, line, moved = option.option, around.launch.line, around.moved
    if name.startswith(("container", "no-container")):
        moved.not_carried(line, option.text, _NO_CONTAINER)
    elif name in ("cpu-bind", "cpus-bind", "gpu-bind", "mem-bind", "distribution", "accel-bind", "hint"):
        moved.not_carried(line, option.text, "binding: none | numa | cores | nearest says how ranks are bound")
    elif name in _OF_SRUN:
        moved.not_needed(line, option.text, _OF_SRUN[name])
    elif re.fullmatch(r"\$\{?SLURM_\w+(:?-[^}]*)?\}?", option.value or "") or (
        name in _COUNTED_BY_SLURM and not (option.value or "").isdecimal()
    ):
        moved.not_needed(line, option.text, "the whole job takes part")
    elif name in ("nodelist", "w"):
        moved.not_carried(line, option.text, "the whole job takes part")
    else:
        carry_directive(option, moved, around.request)


def _take_mpirun(words: list[str], around: Around) -> list[str]:
    around.is_under_srun, words = True, words[1:]
    while words and words[0].startswith("-"):
        option = words[0]
        takes = option in _OF_MPIRUN
        value = words[1] if takes and len(words) > 1 else ""
        if option in ("-np", "-n", "--np") and value.isdecimal():
            around.request.tasks, around.request.tasks_per_node = int(value), None
        elif option == "-ppn" and value.isdecimal():
            around.request.tasks_per_node = int(value)
        elif option == "-x":
            name, equals, given = value.partition("=")
            around.launch.env |= {name: given} if equals else {}
        else:
            around.moved.not_carried(
                around.launch.line, f"{option} {value}".strip(), "ranks are started by the agents, without MPI"
            )
        words = words[(3 if option.endswith("-mca") else 2) if takes else 1 :]
    return words


_TAKERS: dict[str, Callable[[list[str], Around], list[str]]] = {
    **dict.fromkeys(_PLAIN_WRAPPERS, _take_word),
    **dict.fromkeys(_CONTAINERS, _take_container),
    **dict.fromkeys(_RUNNERS, _take_runner),
    **dict.fromkeys(_BINDERS, _take_binder),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun"), _take_mpirun),
    "srun": _take_srun,
    "env": _take_env,
}
