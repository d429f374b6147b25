"""A batch script as a job file: which of its lines are setup, which one starts the training, what is left out; pure.

Every line of the script that does something is in the job file, or has a remark. Lines before the command that starts
the training become `setup`, which the job's script runs where the batch script ran them: on the first node, in one
shell. Lines that only find addresses for a rendezvous are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from hpc_elastic.errors import JobError
from hpc_elastic.job.schema import default_of
from hpc_elastic.moving_in.arguments import (
    COMPUTED,
    NO_ARGUMENTS,
    OF_SCRIPT,
    ONE_TASK,
    TASKS,
    Arguments,
    with_agents_address,
    without_own_arguments,
)
from hpc_elastic.moving_in.command import NOTHING_BEHIND, Launch, name_tail
from hpc_elastic.moving_in.directives import Directive, ResourceRequest, carry_directive, read_directives
from hpc_elastic.moving_in.launchers import read_launch
from hpc_elastic.moving_in.moved import Moved
from hpc_elastic.moving_in.shell import (
    MARKS,
    Statement,
    expand,
    first_pipe,
    is_and_list,
    mark_literals,
    split_words,
    statements,
)
from hpc_elastic.moving_in.training import find_launch, set_on_the_way, static_values

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
_RESTARTS, _REQUEUES = "restart.max_restarts", "requeue.max"
_MAY_FAIL = re.compile(r"(\[|\[\[|test|\(\(|let)\s")
_ONE_ARGUMENT = "one argument, even if it is empty or has spaces; an option to resume by may be entrypoint.restart_args"
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
    known = static_values(everything)
    place, words = find_launch(everything, known, file)
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
    arguments = Arguments(launch, moved, everything[:place], known)
    own = with_agents_address(without_own_arguments(launch, moved), launch, moved)
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


def _carry_inner(before: list[Statement], moved: Moved, arguments: Arguments) -> None:
    """Carry what a shell around the training does first, on each node."""
    carried = len(moved.setup)
    _carry_setup(before, moved, arguments)
    for line in moved.setup[carried:]:
        moved.changed(arguments.line, line, "it runs once, on the first node, before the agents start")


def _carry_setup(before: list[Statement], moved: Moved, arguments: Arguments) -> None:
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


def _left_out_names(before: list[Statement], arguments: Arguments) -> set[str]:
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


def _why_not_needed(statement: Statement, left_out: set[str], arguments: Arguments) -> str:
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


def _carry_cd(statement: Statement, folder: str, moved: Moved, arguments: Arguments) -> None:
    """Make the folder that a script goes to the workers' own, in which setup begins as well."""
    folder = " ".join(split_words(expand(mark_literals(folder), arguments.known)) or [folder])
    if re.fullmatch(r"\$\{?SLURM_SUBMIT_DIR\}?|\.", folder):
        moved.not_needed(statement.line, statement.joined, "workdir is the job file's folder")
        return
    known_names = {name for name in _names_in(folder) if name in arguments.assigned}
    if COMPUTED.search(folder) or known_names or "workdir" in moved.keys or folder == "-":
        why = "the workers start in workdir, wherever setup goes: write that folder there"
        moved.not_carried(statement.line, _short(statement.joined), why)
        _carry_line(statement, moved, arguments)
        return
    moved.keys["workdir"] = arguments.literal(folder, is_path=True)
    if moved.setup:
        why = "it is workdir, where setup begins: the lines above it run there as well"
        moved.changed(statement.line, statement.joined, why)


def _carry_line(statement: Statement, moved: Moved, arguments: Arguments) -> None:
    text = statement.text.strip("\n")
    if TASKS.search(text):
        moved.changed(statement.line, _short(statement.joined), ONE_TASK)
    if statement.keyword != "function" and OF_SCRIPT.search(mark_literals(statement.text)):
        moved.not_carried(statement.line, _short(statement.joined), NO_ARGUMENTS)
    is_test = not statement.keyword and (_MAY_FAIL.match(statement.joined) or is_and_list(statement.joined))
    moved.setup.append(f"{text} || true" if is_test and "||" not in text else text)
    needed = sorted(statement.assignments().keys() & arguments.used)
    if needed and not statement.joined.startswith("export "):
        moved.setup.append(f"export {' '.join(needed)}")
    # It may be set by no branch; bash has nothing for it then, and the agents an error.
    missing = ({*set_on_the_way(statement)} & arguments.used) - arguments.assigned
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
