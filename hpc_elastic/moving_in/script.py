"""A batch script as a job file: which of its lines are setup, which one starts the training, what is left out; pure.

Every line of the script that does something is in the job file, or has a remark. Lines before the command that starts
the training become `setup`, which the job's script runs where the batch script ran them: on the first node, in one
shell. Lines that only find addresses for a rendezvous are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from hpc_elastic.errors import JobError
from hpc_elastic.job.schema import default_of
from hpc_elastic.moving_in.command import NOTHING_BEHIND, Launch, name_tail
from hpc_elastic.moving_in.directives import Directive, ResourceRequest, carry_directive, read_directives
from hpc_elastic.moving_in.launchers import LAUNCHER, is_launch, read_launch
from hpc_elastic.moving_in.moved import Moved
from hpc_elastic.moving_in.shell import (
    LITERAL,
    MARKS,
    Statement,
    expand,
    first_pipe,
    in_double_quotes,
    is_and_list,
    joined_values,
    mark_literals,
    split_words,
    statements,
    unmark_literals,
)

_MEETING = frozenset(
    {
        *("MASTER_ADDR", "MASTER_PORT", "MASTER", "PORT", "NODE_RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
        *("MASTER_HOST", "HEAD_NODE", "HEAD_NODE_IP"),
        *("RDZV_HOST", "RDZV_PORT", "RDZV_ID", "RDZV_BACKEND", "RDZV_ENDPOINT"),
    }
)
_NODE_LIST = re.compile(
    r"scontrol\s+show\s+hostname|SLURM_(JOB_)?NODELIST|hostname\s+(--ip-address|-[iI])|\bnproc_per|SLURMD_NODENAME"
)
_THREADS = re.compile(r"\$\{?SLURM_CPUS_PER_TASK")
_TASKS = re.compile(r"SLURM_(PROCID|LOCALID|NPROCS|NTASKS|NTASKS_PER_NODE|TASKS_PER_NODE|STEP_\w+)\b")
# What bash knows without an environment variable of that name, as far as people use it in scripts (bash(1)).
_OF_BASH = r"RANDOM|SRANDOM|SECONDS|EPOCHSECONDS|EPOCHREALTIME|BASHPID|PPID|UID|EUID|HOSTNAME"
_COMPUTED = re.compile(
    r"\$\(|`|\$\{[A-Za-z_]\w*[^A-Za-z0-9_}]|\$[0-9@*#?!]|\$\{[0-9@*#?!]"
    rf"|\$(?:{_OF_BASH})(?!\w)|\$\{{(?:{_OF_BASH})\}}",
    re.ASCII,
)
_OF_SCRIPT = re.compile(r"\$(?:[0-9@*#]|\{#?[0-9@*#])")  # what follows the script's name at its call
_ALL_OF_SCRIPT = re.compile(r"\$(?:[@*]|\{[@*]\})")
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
_RESTARTS, _REQUEUES = "restart.max_restarts", "requeue.max"
_MAY_FAIL = re.compile(r"(\[|\[\[|test|\(\(|let)\s")
_STARTS = re.compile(
    r"(^|[\s;(])(torchrun|deepspeed|ft_launcher|accelerate\s+launch|srun\s[^\n]*python|python3?\s+-m\s+torch\.distr)"
)
_OF_AGENTS = frozenset({"MASTER_ADDR", "MASTER_PORT"})
_MEETING_URL = re.compile(r"tcp://(?:\$\{?\w+\}?|\$\([^()]*\)|[\w.-]+):(?:\$\{?\w+\}?|\d+)", re.ASCII)
_MEETING_OPTION = re.compile(r"--(?:dist[-_])?master[-_](addr|port)(?![\w-])")
_ONE_ARGUMENT = "one argument, even if it is empty or has spaces; an option to resume by may be entrypoint.restart_args"
_ONE_TASK = "there is one task a node now, whose ranks an agent starts: does the line still mean the same?"
_NO_ARGUMENTS = "a run has no arguments of a script; write the value"
_MOST_BYTES = 1 << 20
_FIRST_LINE = re.compile(r"#![ \t]*(\S[^\n]*)")
# What a login shell reads (bash(1), INVOCATION); their own status says nothing.
_LOGIN = (
    "[ ! -r /etc/profile ] || source /etc/profile || true",
    'for its in ~/.bash_profile ~/.bash_login ~/.profile; do [ ! -r "$its" ] || { . "$its"; break; }; done || true',
)
_TAKE_ANOTHER_WORD = ("-C", "--chdir", "-u", "--unset", "-a", "--argv0")  # options of env(1)
_OF_NO_BASH = re.compile(r"t?csh|fish|python|ipython|xonsh|perl|ruby|Rscript|julia|lua|tclsh|node|pwsh|nu$|elvish")


def move_script(text: str, *, file: str) -> Moved:
    """Return a batch script's keys for a job file, and what it has beside them.

    Args:
        text: the script.
        file: its name, for messages.

    Raises:
        JobError: there is no command that starts a training, or more than one, or it stands in a compound command; or
            it is a script of another language, or of a heterogeneous job.
    """
    if len(text) > _MOST_BYTES or "\0" in text:
        raise JobError([f"{file}: expected a batch script of at most 1 MiB of text"])
    text = text.removeprefix("\ufeff")  # which editors of Windows put first
    if (language := _other_language(text)) is not None:
        tip = (
            "write the lines before the training in bash, which runs `setup` of a job file, and say `init --from` again"
        )
        raise JobError([f"{file}:1: expected a script of bash or sh, found one of {language}"], tip=tip)
    text = MARKS.sub("?", text.replace("\r\n", "\n"))
    moved, request = Moved(), ResourceRequest()
    _carry_directives(text, file, moved, request)
    _name_late_directives(text, moved)
    everything = list(statements(text))
    known = _static_values(everything)
    place, words = _find_launch(everything, known, file)
    moved.launch_line = everything[place].line
    launch = read_launch(words, everything[place].line, moved, request, known)
    if not launch.target:
        raise JobError([f"{file}:{launch.line}: the command names no script: {everything[place].joined}"])
    if launch.launcher and re.fullmatch(r"\$\{?(\w+)(\[[@*]\])?\}?", launch.target, re.ASCII):
        problem = f"{file}:{launch.line}: what {launch.launcher} starts could not be read in {launch.target}"
        tip = "write its options and the script in the command itself, or assign the variable once, outside of any `if`"
        raise JobError([problem], tip=tip)
    _name_rest(everything, place, moved)
    _name_split_words(everything[place], launch, known, moved)
    _name_restarts(launch, moved)
    arguments = _Arguments(launch, moved, everything[:place], known)
    own = _with_agents_address(_without_own_arguments(launch, moved), launch, moved)
    args = [arguments.literal(word) for word in own]
    target = arguments.literal(launch.target, is_path=True)
    env = {name: arguments.literal(value) for name, value in launch.env.items() if name not in _MEETING}
    _carry_first_line(text, moved)
    _carry_setup(everything[:place], moved, arguments)
    _carry_inner([Statement(launch.line, line) for line in launch.before], moved, arguments)
    moved.setup += arguments.exports
    moved.keys["entrypoint"] = {launch.kind: target, **({"args": args} if args else {})}
    if launch.python is not None or launch.kind != "command":
        moved.keys["python"] = arguments.literal(launch.python or "python", is_path=True)
    if env:
        moved.keys["env"] = env
    moved.keys.update(launch.keys)
    _count(launch, moved, request)
    return moved


def _carry_directives(text: str, file: str, moved: Moved, request: ResourceRequest) -> None:
    for found in read_directives(text):
        if isinstance(found, Directive):
            carry_directive(found, moved, request)
        elif found[1] in ("hetjob", "packjob"):
            tip = "a run has nodes of one kind: leave the options of one component in it; `roles` share out its nodes"
            raise JobError([f"{file}:{found[0]}: heterogeneous jobs are not supported"], tip=tip)
        else:
            moved.not_carried(found[0], found[1], "it could not be read")


def _other_language(text: str) -> str | None:
    """Return the program that a script's first line names if its language is not bash's, such as csh or Python's."""
    line = _FIRST_LINE.match(text)
    named = line[1].split() if line is not None else []
    if named and os.path.basename(named[0]) == "env":
        named = [
            word
            for before, word in pairwise(named)
            if not word.startswith("-") and "=" not in word and before not in _TAKE_ANOTHER_WORD
        ]
    program = os.path.basename(named[0]) if named else ""
    return program if _OF_NO_BASH.match(program) else None


def _carry_first_line(text: str, moved: Moved) -> None:
    """Have setup do what the options in a script's first line do; our scripts are started by bash without any."""
    line = _FIRST_LINE.match(text)
    options = [word for word in (line[1].split()[1:] if line is not None else []) if word.startswith("-")]
    letters = "".join(word[1:] for word in options if not word.startswith("--"))
    if "l" in letters or "--login" in options:
        why = "no login shell runs the job: setup reads what one reads, also ~/.bash_profile; leave out what you can"
        moved.changed(1, line[0] if line is not None else "", why)
        moved.setup += _LOGIN
    if kept := "".join(letter for letter in "eux" if letter in letters):
        moved.setup.append(f"set -{kept}")


def _find_launch(everything: list[Statement], known: dict[str, str], file: str) -> tuple[int, list[str]]:
    """Return the place and the words of the one command that starts the training."""
    found: list[tuple[int, int, list[str]]] = []
    beside: set[int] = set()  # in the background, and not waited for so far
    for place, statement in enumerate(everything):
        if re.match(r"wait\b", statement.joined):
            beside.clear()
        if statement.keyword or statement.assignments():
            continue
        command, tail = first_pipe(expand(mark_literals(statement.joined), known))
        words = split_words(command.removeprefix("eval ").strip()) or []
        if words and (sureness := is_launch(words, known)):
            if tail.endswith("&"):
                beside.add(place)
            elif beside:  # servers, which the training needs
                found = [each for each in found if each[1] not in beside]
            found.append((sureness, place, words))
    best = max((sureness for sureness, _, _ in found), default=0)
    chosen = [(place, words) for sureness, place, words in found if sureness == best]
    hidden = [each for each in everything if each.keyword and _starts_training(each.text)]
    if hidden and best < LAUNCHER:
        what = "a function" if hidden[0].keyword == "function" else f"`{hidden[0].keyword}`"
        problem = f"{file}:{hidden[0].line}: the training is started within {what}"
        tip = "write the one command that starts it on a line of its own, and say `init --from` again"
        raise JobError([problem], tip=tip)
    if not chosen:
        looked = "torchrun, srun python, accelerate launch, deepspeed, ft_launcher"
        tip = (
            "write the command on a line of its own, with the launcher's name in it and not in a variable that the "
            "script makes piece by piece; without a script, `hpc-elastic init train.py` writes a job file"
        )
        raise JobError([f"{file}: no command that starts a training was found (looked for {looked})"], tip=tip)
    if len(chosen) > 1:
        lines = ", ".join(str(everything[place].line) for place, _ in chosen)
        tip = "one job file is one run: make a script for each, and say `init --from` for each"
        raise JobError([f"{file}: {len(chosen)} commands start a training, in lines {lines}"], tip=tip)
    return chosen[0]


def _starts_training(text: str) -> bool:
    return bool(_STARTS.search(re.sub(r"\\\n", " ", text)))


def _static_values(everything: list[Statement]) -> dict[str, str]:
    """Return the variables that are assigned once, to what needs no shell to be known.

    The words of a command (`LAUNCHER="torchrun --nnodes $(wc -l < hosts) "`) are known although bash computes some.
    """
    assigned: dict[str, list[str]] = {}
    for statement in everything:
        for name, value in statement.assignments().items():
            assigned.setdefault(name, []).append(mark_literals(value))
        if (appended := statement.appended()) is not None and len(assigned.get(appended[0], [])) == 1:
            name, more = appended
            assigned[name] = joined_values(assigned[name][0], mark_literals(more))
            continue
        for name in _set_on_the_way(statement):
            assigned.setdefault(name, []).append("$(computed)")
    return {
        name: values[0]
        for name, values in assigned.items()
        if len(values) == 1 and name not in _OF_AGENTS and (not _COMPUTED.search(values[0]) or _is_command(values[0]))
    }


def _is_command(value: str) -> bool:
    """Return whether a value is several words of a command, a program with arguments or options, or `"$@"`."""
    words = split_words(value) or []
    if len(words) == 1 and words[0] != value:  # in quotes
        words = split_words(words[0]) or []
    if len(words) == 1 and _ALL_OF_SCRIPT.fullmatch(words[0]):
        return True
    is_start = bool(words) and (_is_program(words[0]) or is_launch(words) > 0)
    return len(words) > 1 and (is_start or any(re.match(r"--?[A-Za-z]", word) for word in words))


def _is_program(word: str) -> bool:
    return word.endswith((".py", ".sh")) or os.path.basename(word) in ("srun", "mpirun", "mpiexec")


def _set_on_the_way(statement: Statement) -> list[str]:
    """Return the variables that a statement may set which is more than assignments: a condition, a loop, a `read`."""
    if statement.assignments():
        return []
    set_by_sign = re.findall(r"(?:^|[\s;(])([A-Za-z_]\w*)\+?=", statement.text, re.ASCII)
    return set_by_sign + re.findall(r"\bread\s+(?:-\S+\s+)*([A-Za-z_]\w*)", statement.text, re.ASCII)


class _Arguments:
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
        if _COMPUTED.search(word):
            return self._computed(word)
        out, place = [], 0
        if word.startswith("~/"):
            word = "$HOME" + word[1:]
        while place < len(word):
            match = _REFERENCE.match(word, place)
            if match is not None:
                name = match[1] or match[2]
                mapped = self._names.get(name, name)
                if name in _OF_AGENTS:
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
        if _OF_SCRIPT.search(word):
            self._moved.not_carried(self._launch.line, unmark_literals(word), _NO_ARGUMENTS)
        elif self._launch.is_in_shell and any(name in word for name in _OF_ONE):
            why = "setup computes it once, on the first node, and not for each rank"
            self._moved.not_carried(self.line, unmark_literals(word), why)
        elif _TASKS.search(word):
            self._moved.changed(self.line, unmark_literals(word), _ONE_TASK)
        name = f"MOVED_{len(self.exports) + 1}"
        self.exports.append(f'export {name}="{in_double_quotes(word)}"')
        return f"${{{name}}}"


def _without_own_arguments(launch: Launch, moved: Moved) -> list[str]:
    """Return the training's arguments without `"$@"`: of no arguments bash makes no word, not even an empty one."""
    given = [word for word in launch.args if not _ALL_OF_SCRIPT.fullmatch(word)]
    if len(given) < len(launch.args):
        moved.not_carried(launch.line, "$@", _NO_ARGUMENTS)
    return given


def _with_agents_address(words: list[str], launch: Launch, moved: Moved) -> list[str]:
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


def _name_restarts(launch: Launch, moved: Moved) -> None:
    if "restart.max_restarts" not in launch.keys and "requeue.max" not in moved.keys:
        numbers = f"{default_of(_RESTARTS)} and {default_of(_REQUEUES)}"
        why = f"they are the defaults, {numbers}; a script that does not resume begins anew each time: set them to 0"
        moved.changed(launch.line, "restart.max_restarts and requeue.max", why)


def _name_split_words(statement: Statement, launch: Launch, known: dict[str, str], moved: Moved) -> None:
    """Name the variables that bash makes several words of, or none: in a job file each is one argument."""
    command, _ = first_pipe(expand(mark_literals(statement.joined), known))
    unquoted = set(re.findall(r"(?<=\s)\$\{?\w+(?:\[[@*]\])?\}?(?=\s|$)", command, re.ASCII))
    for word in launch.args:
        is_list = re.fullmatch(r"\$\{\w+\[[@*]\]\}", word, re.ASCII)  # also in quotes, where its values are not known
        if is_list or (word in unquoted and not word.startswith(("$SLURM_", "${SLURM_"))):
            moved.changed(statement.line, word, _ONE_ARGUMENT)
        elif re.search(r"[*?]|\{.*(,|\.\.).*\}|\[.+\]", word) and word in command.split():
            moved.changed(statement.line, word, "one argument as it is written: no shell finds files for it")


def _carry_inner(before: list[Statement], moved: Moved, arguments: _Arguments) -> None:
    """Carry what a shell around the training does first, on each node."""
    carried = len(moved.setup)
    _carry_setup(before, moved, arguments)
    for line in moved.setup[carried:]:
        moved.changed(arguments.line, line, "it runs once, on the first node, before the agents start")


def _carry_setup(before: list[Statement], moved: Moved, arguments: _Arguments) -> None:
    left_out = _left_out_names(before, arguments)
    for statement in before:
        text = statement.joined
        if why := _why_not_needed(statement, left_out, arguments):
            moved.not_needed(statement.line, _short(text), why)
        elif not statement.keyword and (match := re.fullmatch(r"cd\s+(?:--\s+)?(\S+|\"[^\"]*\"|'[^']*')", text)):
            _carry_cd(statement, match[1], moved, arguments)
        elif re.search(r"(^|[\s;&|(])(cd|pushd|popd)\b", text):
            why = "the workers start in workdir, wherever setup goes: write that folder there"
            moved.not_carried(statement.line, _short(text), why)
            _carry_line(statement, moved, arguments)
        elif re.match(r"trap\b", text):
            moved.not_carried(
                statement.line,
                _short(text),
                "the job's script answers signals itself; see the keys of signals and requeue",
            )
        elif re.match(r"(exit|return)\b", text):
            moved.not_carried(statement.line, _short(text), "it would end the job before the training")
        elif not statement.keyword and re.search(r"(^|[^&])&\s*$", text):
            moved.not_carried(statement.line, _short(text), "setup starts nothing that goes on in the background")
        else:
            _carry_line(statement, moved, arguments)


def _left_out_names(before: list[Statement], arguments: _Arguments) -> set[str]:
    """Return the variables that only find addresses, and that no line which stays refers to."""
    left_out: set[str] = set()
    for statement in before:
        assigned = statement.assignments()
        is_meeting = bool(assigned) and all(
            name in _MEETING or _NODE_LIST.search(value) or left_out & _names_in(value)
            for name, value in assigned.items()
        )
        if is_meeting and not assigned.keys() & arguments.used:
            left_out |= assigned.keys()
    while True:
        staying = [each for each in before if not _why_not_needed(each, left_out, arguments)]
        needed = left_out & {name for each in staying for name in (*each.names, *each.assignments())}
        if not needed:
            return left_out
        left_out -= needed


def _why_not_needed(statement: Statement, left_out: set[str], arguments: _Arguments) -> str:
    """Return why a line before the training is left out without loss, empty if it is not."""
    text, names = statement.joined, statement.assignments().keys()
    if names and names <= left_out:
        return "the agents find each other, and give the ranks their addresses"
    if re.match(r"(echo|printf)\b", text) and left_out & statement.names:
        return "it prints what is not needed"
    if re.fullmatch(r"export(?:\s+\w+)+\s*", text) and set(text.split()[1:]) <= _MEETING | left_out:
        return "the agents give the ranks their addresses"
    if arguments.launcher == "deepspeed" and not names and re.search(r"scontrol\s+show\s+hostname", text):
        return "Slurm starts one agent a node, without ssh and a host file"
    if "OMP_NUM_THREADS" in names and _THREADS.search(text):
        return "resources.cpus_per_worker sets it"
    return "a job has no terminal" if re.fullmatch(r"clear|reset", text) else ""


def _carry_cd(statement: Statement, folder: str, moved: Moved, arguments: _Arguments) -> None:
    """Make the folder that a script goes to the workers' own, in which setup begins as well."""
    folder = " ".join(split_words(expand(mark_literals(folder), arguments.known)) or [folder])
    if re.fullmatch(r"\$\{?SLURM_SUBMIT_DIR\}?|\.", folder):
        moved.not_needed(statement.line, statement.joined, "workdir is the job file's folder")
        return
    known_names = {name for name in _names_in(folder) if name in arguments.assigned}
    if _COMPUTED.search(folder) or known_names or "workdir" in moved.keys or folder == "-":
        why = "the workers start in workdir, wherever setup goes: write that folder there"
        moved.not_carried(statement.line, _short(statement.joined), why)
        _carry_line(statement, moved, arguments)
        return
    moved.keys["workdir"] = arguments.literal(folder, is_path=True)
    if moved.setup:
        why = "it is workdir, where setup begins: the lines above it run there as well"
        moved.changed(statement.line, statement.joined, why)


def _carry_line(statement: Statement, moved: Moved, arguments: _Arguments) -> None:
    text = statement.text.strip("\n")
    if _TASKS.search(text):
        moved.changed(statement.line, _short(statement.joined), _ONE_TASK)
    if statement.keyword != "function" and _OF_SCRIPT.search(mark_literals(statement.text)):
        moved.not_carried(statement.line, _short(statement.joined), _NO_ARGUMENTS)
    is_test = not statement.keyword and (_MAY_FAIL.match(statement.joined) or is_and_list(statement.joined))
    moved.setup.append(f"{text} || true" if is_test and "||" not in text else text)
    needed = sorted(statement.assignments().keys() & arguments.used)
    if needed and not statement.joined.startswith("export "):
        moved.setup.append(f"export {' '.join(needed)}")
    # It may be set by no branch; bash has nothing for it then, and the agents an error.
    missing = ({*_set_on_the_way(statement)} & arguments.used) - arguments.assigned
    moved.setup += [f'export {name}="${{{name}-}}"' for name in sorted(missing)]


def _names_in(value: str) -> set[str]:
    return set(re.findall(r"\$\{?([A-Za-z_]\w*)", value, re.ASCII))


def _name_rest(everything: list[Statement], place: int, moved: Moved) -> None:
    """Name what stands behind the command that starts the training."""
    launch = everything[place]
    _, tail = first_pipe(launch.joined)
    name_tail(launch.line, tail, moved)
    for statement in everything[place + 1 :]:
        if re.fullmatch(r"wait(\s+\S+)?|exit(\s+\S+)?|set\s+[-+]\w+|echo\b.*|date|(\w+=)?\$\?", statement.joined):
            moved.not_needed(statement.line, _short(statement.joined), "the job ends with the exit code of the run")
        else:
            moved.not_carried(statement.line, _short(statement.joined), NOTHING_BEHIND)


def _name_late_directives(text: str, moved: Moved) -> None:
    has_begun = False
    for number, line in enumerate(text.split("\n"), 1):
        has_begun = has_begun or (bool(line.strip()) and not line.startswith("#"))
        if has_begun and line.startswith("#SBATCH"):
            moved.not_carried(number, line, "it stands below the first command, where sbatch does not look either")


def _count(launch: Launch, moved: Moved, request: ResourceRequest) -> None:
    """Say how many nodes and workers there are, and what each worker has."""
    keys = moved.keys
    nodes = request.count_nodes()
    told = _range(launch.nodes)
    if "nodes" not in keys:
        keys["nodes"] = nodes if request.nodes or not told else told
    elif isinstance(told, dict):
        keys["nodes"] = told
        moved.changed(launch.line, f"--nnodes={launch.nodes}", "Slurm is asked for so many nodes, at least and at most")
    if isinstance(told, int) and told != nodes and request.nodes:
        moved.changed(
            launch.line, f"{launch.launcher} on {told} nodes", f"the job has {nodes}, and all of them take part"
        )
    tasks, gpus = request.count_tasks(), request.count_gpus()
    workers: int | str = tasks or 1 if launch.workers is None else launch.workers
    if launch.workers == 1 and not launch.launcher and nodes > 1:
        keys["nodes"] = 1
        moved.changed(launch.line, "one process on the first node", f"so nodes is 1, and not {nodes}")
    if launch.launcher not in ("", "deepspeed") and not launch.is_under_srun and nodes > 1:
        why = f"bash started it on the first node alone; all {nodes} nodes of the job take part now"
        moved.changed(launch.line, launch.launcher, why)
    if launch.is_one_a_task:
        keys["worker_env.slurm"] = "rank"
    keys["workers_per_node"] = workers
    is_typed = "gpus-per-node" in moved.sbatch or str(moved.sbatch.get("gres", "")).startswith("gpu")
    if gpus is not None and request.gpu_type is not None and not is_typed:
        moved.sbatch["gpus-per-node"] = f"{request.gpu_type}:{gpus}"
    elif gpus is not None and not is_typed:
        keys["resources.gpus_per_node"] = gpus
    if request.cpus_per_gpu is not None and gpus:
        total: int | None = request.cpus_per_gpu * gpus
    else:
        total = request.cpus_per_task * (tasks or 1) if request.cpus_per_task else None
    count = workers if isinstance(workers, int) else gpus
    if total is not None and count and total % count == 0:
        keys["resources.cpus_per_worker"] = total // count
    elif total is not None:
        moved.sbatch["cpus-per-task"] = total


def _range(text: str | None) -> Any:
    """Return what a launcher was told about nodes: a number, a map of min and max, None for a variable."""
    if text and re.fullmatch(r"[1-9]\d{0,5}", text, re.ASCII):
        return int(text)
    match = re.fullmatch(r"([1-9]\d{0,5}):([1-9]\d{0,5})", text or "", re.ASCII)
    return {"min": int(match[1]), "max": int(match[2])} if match else None


def _short(text: str) -> str:
    line = text.split("\n", 1)[0]
    return line if len(line) <= 60 and line == text else f"{line[:57]}..."


def carried_lines(text: str, moved: Moved) -> Iterator[tuple[int, str]]:
    """Yield the lines of a script that neither the job file nor a remark has, which should be none; for tests."""
    told = {remark.line for remark in moved.remarks}
    setup = "\n".join(moved.setup)
    for statement in statements(text):
        if statement.line not in told and statement.text.strip() not in setup:
            yield statement.line, statement.text
