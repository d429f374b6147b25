"""The arguments of a moved-in training as a job file says them, with variables of a node, of a rank, or of setup.

What bash would compute for the command, setup computes and exports; what differs from task to task is the rank's own
variable of torch; the address at which ranks meet is that of the agents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpc_elastic.moving_in.command import Launch
from hpc_elastic.moving_in.moved import Moved
from hpc_elastic.moving_in.shell import LITERAL, Statement, in_double_quotes, unmark_literals

TASKS = re.compile(r"SLURM_(PROCID|LOCALID|NPROCS|NTASKS|NTASKS_PER_NODE|TASKS_PER_NODE|STEP_\w+)\b")
# What bash knows without an environment variable of that name, as far as people use it in scripts (bash(1)).
_OF_BASH = r"RANDOM|SRANDOM|SECONDS|EPOCHSECONDS|EPOCHREALTIME|BASHPID|PPID|UID|EUID|HOSTNAME"
COMPUTED = re.compile(
    r"\$\(|`|\$\{[A-Za-z_]\w*[^A-Za-z0-9_}]|\$[0-9@*#?!]|\$\{[0-9@*#?!]"
    rf"|\$(?:{_OF_BASH})(?!\w)|\$\{{(?:{_OF_BASH})\}}",
    re.ASCII,
)
OF_SCRIPT = re.compile(r"\$(?:[0-9@*#]|\{#?[0-9@*#])")  # what follows the script's name at its call
ALL_OF_SCRIPT = re.compile(r"\$(?:[@*]|\{[@*]\})")
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", re.ASCII)
_OF_A_TASK = {
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NODEID": "GROUP_RANK",
    **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), "WORLD_SIZE"),
    "SLURM_NTASKS_PER_NODE": "LOCAL_WORLD_SIZE",
}
_OF_A_NODE = {
    **dict.fromkeys(("SLURM_PROCID", "SLURM_NODEID"), "GROUP_RANK"),
    **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_NPROCS"), "GROUP_WORLD_SIZE"),
}
_OF_NODES, _OF_TASKS = r"\$?\{?SLURM_(?:NNODES|JOB_NUM_NODES)\}?", r"\$?\{?SLURM_NTASKS_PER_NODE\}?"
_ALL_TASKS = re.compile(rf"\$\(\(\s*(?:{_OF_NODES}\s*\*\s*{_OF_TASKS}|{_OF_TASKS}\s*\*\s*{_OF_NODES})\s*\)\)")
_OF_ONE = frozenset({"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"})  # what differs from task to task
OF_AGENTS = frozenset({"MASTER_ADDR", "MASTER_PORT"})
_MEETING_URL = re.compile(r"tcp://(?:\$\{?\w+\}?|\$\([^()]*\)|[\w.-]+):(?:\$\{?\w+\}?|\d+)", re.ASCII)
_MEETING_OPTION = re.compile(r"--(?:dist[-_])?master[-_](addr|port)(?![\w-])")
ONE_TASK = "there is one task a node now, whose ranks an agent starts: does the line still mean the same?"
NO_ARGUMENTS = "a run has no arguments of a script; write the value"


class Arguments:
    """Turns words of bash into text of a job file, where `${NAME}` is a variable of the node and `$$` a dollar sign."""

    def __init__(self, launch: Launch, moved: Moved, before: list[Statement], known: Mapping[str, str]) -> None:
        self._launch = launch
        self._moved = moved
        self._names = _OF_A_TASK if launch.is_one_a_task else _OF_A_NODE
        self.line = launch.line
        self.launcher = launch.launcher
        self.known = known
        self.assigned = {name for each in before for name in each.assignments()}
        self.used: set[str] = set()
        self.exports: list[str] = []

    def literal(self, word: str, *, is_path: bool = False) -> str:
        """Return a word of a command as the job file says it."""
        word = _ALL_TASKS.sub("$SLURM_NTASKS", word)
        if COMPUTED.search(word):
            return self._computed(word)
        out, place = [], 0
        if word.startswith("~/"):
            word = "$HOME" + word[1:]
        while place < len(word):
            match = _REFERENCE.match(word, place)
            if match is not None:
                name = match[1] or match[2]
                mapped = self._names.get(name, name)
                if name in OF_AGENTS:
                    pass
                elif mapped == name:
                    self.used.add(name)
                elif name in _OF_ONE and not self._launch.is_in_shell:
                    why = "each rank gets its own; bash put the batch script's in, the same for all"
                    self._moved.changed(self.line, f"${name}", why)
                out.append(f"${{{mapped}}}")
                place = match.end()
                continue
            character = word[place]
            out.append(
                "$$" if character in ("$", LITERAL) and not is_path else "$" if character == LITERAL else character
            )
            place += 1
        return "".join(out)

    def _computed(self, word: str) -> str:
        """Return a variable for a word that only bash can compute, and have setup compute it."""
        if OF_SCRIPT.search(word):
            self._moved.not_carried(self._launch.line, unmark_literals(word), NO_ARGUMENTS)
        elif self._launch.is_in_shell and any(name in word for name in _OF_ONE):
            why = "setup computes it once, on the first node, and not for each rank"
            self._moved.not_carried(self.line, unmark_literals(word), why)
        elif TASKS.search(word):
            self._moved.changed(self.line, unmark_literals(word), ONE_TASK)
        name = f"MOVED_{len(self.exports) + 1}"
        self.exports.append(f'export {name}="{in_double_quotes(word)}"')
        return f"${{{name}}}"


def without_own_arguments(launch: Launch, moved: Moved) -> list[str]:
    """Return the training's arguments without `"$@"`: of no arguments bash makes no word, not even an empty one."""
    given = [word for word in launch.args if not ALL_OF_SCRIPT.fullmatch(word)]
    if len(given) < len(launch.args):
        moved.not_carried(launch.line, "$@", NO_ARGUMENTS)
    return given


def with_agents_address(words: list[str], launch: Launch, moved: Moved) -> list[str]:
    """Return the training's arguments with the address at which the agents let ranks meet, in place of the script's.

    torch's `tcp://` and `env://` (2.13, distributed/rendezvous.py) look for the agents' store: at another port nobody
    listens.
    """
    found = []
    for number, word in enumerate(words):
        before = words[number - 1] if number else ""
        new = _MEETING_URL.sub(r"tcp://$MASTER_ADDR:$MASTER_PORT", word)
        if (option := _MEETING_OPTION.fullmatch(before)) and not word.startswith("-"):
            new = f"$MASTER_{option[1].upper()}"
        elif (option := _MEETING_OPTION.match(word)) and word[option.end() :].startswith("="):
            new = f"{option[0]}=$MASTER_{option[1].upper()}"
        if new.replace("{", "").replace("}", "") != word.replace("{", "").replace("}", ""):
            moved.changed(launch.line, unmark_literals(word), "ranks meet at the address and the port of the agents")
            word = new
        found.append(word)
    return found
