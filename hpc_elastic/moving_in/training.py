"""Which command of a batch script starts the training, and what is known of the variables in it."""

from __future__ import annotations

import os
import re

from hpc_elastic.errors import JobError
from hpc_elastic.moving_in.arguments import ALL_OF_SCRIPT, COMPUTED, OF_AGENTS
from hpc_elastic.moving_in.launchers import LAUNCHER, is_launch
from hpc_elastic.moving_in.shell import Statement, expand, first_pipe, joined_values, mark_literals, split_words

_STARTS = re.compile(
    r"(^|[\s;(])(torchrun|deepspeed|ft_launcher|accelerate\s+launch|srun\s[^\n]*python|python3?\s+-m\s+torch\.distr)"
)


def find_launch(everything: list[Statement], known: dict[str, str], file: str) -> tuple[int, list[str]]:
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


def static_values(everything: list[Statement]) -> dict[str, str]:
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
        for name in set_on_the_way(statement):
            assigned.setdefault(name, []).append("$(computed)")
    return {
        name: values[0]
        for name, values in assigned.items()
        if len(values) == 1 and name not in OF_AGENTS and (not COMPUTED.search(values[0]) or _is_command(values[0]))
    }


def _is_command(value: str) -> bool:
    """Return whether a value is several words of a command, a program with arguments or options, or `"$@"`."""
    words = split_words(value) or []
    if len(words) == 1 and words[0] != value:  # in quotes
        words = split_words(words[0]) or []
    if len(words) == 1 and ALL_OF_SCRIPT.fullmatch(words[0]):
        return True
    is_start = bool(words) and (_is_program(words[0]) or is_launch(words) > 0)
    return len(words) > 1 and (is_start or any(re.match(r"--?[A-Za-z]", word) for word in words))


def _is_program(word: str) -> bool:
    return word.endswith((".py", ".sh")) or os.path.basename(word) in ("srun", "mpirun", "mpiexec")


def set_on_the_way(statement: Statement) -> list[str]:
    """Return the variables that a statement may set which is more than assignments: a condition, a loop, a `read`."""
    if statement.assignments():
        return []
    set_by_sign = re.findall(r"(?:^|[\s;(])([A-Za-z_]\w*)\+?=", statement.text, re.ASCII)
    return set_by_sign + re.findall(r"\bread\s+(?:-\S+\s+)*([A-Za-z_]\w*)", statement.text, re.ASCII)
