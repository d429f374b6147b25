"""Which schedules an edit is played with: seeds that run its line, or what shows it, and the same with other dice.

Theory of operation. An edit of a line in a function shows where that line runs. An edit of what runs as its module is
loaded (a bound, a default) shows where a line runs that reads its name, in whichever module. Where none of these lines
ran in a seed that was measured (`reach`), seeds come that run the function around the edit, or its class. An edit of a
value that an object keeps shows where that is read: of the seeds that run the line those come first that run
the rarest of these lines. And what a function decides may show in few of the seeds that run it: a part of the schedules
are those that run the rarest of the lines that come after the edit, in its function and in those that this one calls,
in turn with those that run the rarest of the lines that read, in any module, what the edit is kept as.

A line that hardly any of the measured seeds runs may be run by more seeds of other kinds than of theirs: those have
turns, too, if many schedules are wanted.

Few seeds of a kind may run a line. Then a schedule that does is played again with other dice: the faults, the roles and
the times are the same, and what is drawn while it is played (delays, disks, which worker fails) is not. Most of these
run the line too, from other states. Such a schedule is in no campaign of seeds, so nobody knows that the code as it is
survives it: `mutate` plays that before it calls an edit caught.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.mutation.mutated_code import ROOT
from tests.simulation.mutation.reach import Reach

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

OTHER_DICE = 1_000_003  # so far apart are seeds whose schedules are the same but for the dice
TELLING = 1 / 3  # of the schedules of an edit
RUNS_AGAIN = 2.0  # schedules with other dice for each that runs the line, as it is taken to be
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


class Trial(NamedTuple):
    """A schedule: a seed of a kind, and with which dice it is played; 0: its own."""

    kind: str
    seed: int
    dice: int = 0

    @property
    def name(self) -> str:
        """As verdicts have it."""
        return f"{self.kind} {self.seed}" + (f"/{self.dice}" if self.dice else "")

    def scenario(self) -> Scenario:
        """What is played."""
        from tests.simulation.draws.kinds import KINDS

        drawn = KINDS[self.kind](self.seed)
        return replace(drawn, seed=drawn.seed + self.dice * OTHER_DICE) if self.dice else drawn


def trial_in(verdict: str) -> Trial | None:
    """The schedule that a verdict names, if an edit was caught."""
    found = re.match(r"([\w-]+) (\d+)(?:/(\d+))?: ", verdict)
    return Trial(found[1], int(found[2]), int(found[3] or 0)) if found else None


# Where an edit shows.


@lru_cache(maxsize=1)
def _readers() -> Mapping[str, frozenset[str]]:
    """By name, the lines in functions that read it, as `module:line`."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "hpc_elastic").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for function in _functions(ast.parse(path.read_text())):
            defaults = [each for each in (*function.args.defaults, *function.args.kw_defaults) if each is not None]
            first = f"{module}:{function.body[-1].lineno}"
            for node in ast.walk(function):
                if (name := _name_read(node)) is not None:
                    found.setdefault(name, set()).add(f"{module}:{getattr(node, 'lineno', 0)}")
            for name in {_name_read(node) for default in defaults for node in ast.walk(default)} - {None}:
                found.setdefault(str(name), set()).add(first)
    return {name: frozenset(lines) for name, lines in found.items()}


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (each for each in ast.walk(tree) if isinstance(each, Function))


def _name_read(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) else None


def _names_set(statement: ast.AST, wanted: ast.AST) -> Iterator[str]:
    """The names that a statement of a module or a class gives a value, or that a call in it has as keywords."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    yield from (each.id for each in targets if isinstance(each, ast.Name))
    for call in ast.walk(statement):  # the fields of an object that is made here
        if isinstance(call, ast.Call):
            inside = (each for each in call.keywords if any(node is wanted for node in ast.walk(each.value)))
            yield from (each.arg for each in inside if each.arg is not None)


@lru_cache(maxsize=16)
def _nodes(path: Path) -> Sequence[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def lines_that_show(module: str, number: int, line: int) -> list[list[str]]:
    """Where the edit of a node shows, as `module:line`: the nearest lines first, and each group wherever those do not.

    Args:
        module: the module's name.
        number: which node of its tree, in the order of `ast.walk`.
        line: the node's line.
    """
    nodes = _nodes(ROOT / (module.replace(".", "/") + ".py"))
    wanted = nodes[number]
    around = [each for each in nodes if any(child is wanted for child in ast.walk(each)) and each is not wanted]
    functions = [each for each in around if isinstance(each, Function) and _is_in_body(each, wanted)]
    if functions:
        inner = [f"{module}:{each}" for each in range(functions[-1].lineno, (functions[-1].end_lineno or 0) + 1)]
        return [[f"{module}:{line}"], inner, *_of_classes(module, around)]
    statements = [each for each in around if isinstance(each, (ast.Assign, ast.AnnAssign))]
    names = {name for each in statements for name in _names_set(each, wanted)}
    heads = [each for each in around if isinstance(each, Function)]  # whose default it is
    bodies = [f"{module}:{each.lineno}" for head in heads for each in head.body]
    readers = [each for name in sorted(names) for each in sorted(_readers().get(name, ()))]
    return [readers or bodies, *_of_classes(module, around)]


def lines_that_read(module: str, number: int) -> list[str]:
    """Where the module reads what the statement around a node lets an object keep, as `module:line`."""
    nodes = _nodes(ROOT / (module.replace(".", "/") + ".py"))
    stores = [each for each in nodes if isinstance(each, (ast.Assign, ast.AugAssign, ast.AnnAssign))]
    around = [each for each in stores if any(child is nodes[number] for child in ast.walk(each))]
    targets = [each.targets[0] if isinstance(each, ast.Assign) else each.target for each in around]
    names = {each.attr for each in targets if isinstance(each, ast.Attribute)}
    reads = (each for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load))
    return sorted({f"{module}:{each.lineno}" for each in reads if each.attr in names})


def lines_that_use(module: str, number: int) -> list[str]:
    """Where any module reads what a node is kept as, in an attribute or as a keyword of a call, as `module:line`.

    Args:
        module: the module's name; what is private to it is read nowhere else.
        number: which node of its tree, in the order of `ast.walk`.
    """
    nodes = _nodes(ROOT / (module.replace(".", "/") + ".py"))
    keeps = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.keyword)
    around = [
        each for each in nodes if isinstance(each, keeps) and any(child is nodes[number] for child in ast.walk(each))
    ]
    names = {each.arg for each in around if isinstance(each, ast.keyword)}
    targets = [target for each in around for target in getattr(each, "targets", [getattr(each, "target", None)])]
    names |= {each.attr for each in targets if isinstance(each, ast.Attribute)}
    lines = {(name, line) for name in names if name is not None for line in _readers().get(name, ())}
    return sorted(line for name, line in lines if not name.startswith("_") or line.startswith(f"{module}:"))


@lru_cache(maxsize=1)
def _bodies() -> Mapping[str, frozenset[str]]:
    """By name, the lines of the function of that name, as `module:line`, where there is but one."""
    found: dict[str, list[frozenset[str]]] = {}
    for path in sorted((ROOT / "hpc_elastic").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for function in _functions(ast.parse(path.read_text())):
            lines = range(function.body[0].lineno, (function.end_lineno or 0) + 1)
            found.setdefault(function.name, []).append(frozenset(f"{module}:{line}" for line in lines))
    return {name: lines[0] for name, lines in found.items() if len(lines) == 1}


def lines_after(module: str, number: int) -> list[str]:
    """Where an edit may show later, as `module:line`: the rest of its function, and the functions that this calls.

    Args:
        module: the module's name.
        number: which node of its tree, in the order of `ast.walk`.
    """
    nodes = _nodes(ROOT / (module.replace(".", "/") + ".py"))
    first = getattr(nodes[number], "lineno", 0)
    inside = (each for each in nodes if isinstance(each, Function) and _is_in_body(each, nodes[number]))
    function = next(inside, None)
    if function is None:
        return []
    later = [each for each in ast.walk(function) if getattr(each, "lineno", 0) >= first]
    names = {_name_read(each.func) for each in later if isinstance(each, ast.Call)}
    called = {line for name in names if name is not None for line in _bodies().get(name, ())}
    return sorted(called | {f"{module}:{line}" for line in range(first, (function.end_lineno or first) + 1)})


def _is_in_body(function: ast.FunctionDef | ast.AsyncFunctionDef, wanted: ast.AST) -> bool:
    return any(each is wanted for statement in function.body for each in ast.walk(statement))


def _of_classes(module: str, around: Iterable[ast.AST]) -> list[list[str]]:
    classes = [each for each in around if isinstance(each, ast.ClassDef)]
    return [[f"{module}:{line}" for line in range(each.lineno, (each.end_lineno or 0) + 1)] for each in classes]


def reached(reach: Reach, groups: Sequence[Sequence[str]]) -> list[tuple[str, int]]:
    """The seeds that run the first group of lines that any seed runs, those of its rarest lines first."""
    for group in groups:
        ran = [reach[line] for line in group if reach.get(line)]
        if ran:
            order = (seed for seeds in sorted(ran, key=len) for seed in seeds)
            return list(dict.fromkeys((kind, seed) for kind, seed in order))
    return []


def aimed(reach: Reach, module: str, number: int, line: int) -> list[tuple[str, int]]:
    """The seeds that run an edit's line, those first that run the rarest line that reads what it keeps."""
    ran = reached(reach, lines_that_show(module, number, line))
    among = set(ran)
    first = [seed for seed in reached(reach, [lines_that_read(module, number)]) if seed in among]
    return list(dict.fromkeys((*first, *ran)))


def telling(reach: Reach, module: str, number: int, ran: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Of the seeds that run an edit's line those that run lines after it, or use it; those of the rarest line first."""
    among = set(ran)
    after, use = (reached(reach, [lines]) for lines in (lines_after(module, number), lines_that_use(module, number)))
    in_turn = (seed for both in zip_longest(after, use) for seed in both if seed in among)
    return list(dict.fromkeys(in_turn))


# The order.


def trials(
    ran: Sequence[tuple[str, int]],
    kinds: Mapping[str, float],
    tried: int,
    count: int,
    early: Sequence[tuple[str, int]] = (),
) -> list[Trial]:
    """The schedules that an edit is played with, in order.

    Args:
        ran: the seeds that run its line.
        kinds: all kinds, with their weights: of a kind of twice the weight twice as many are played.
        tried: how many seeds of each kind were played to see which lines they run, at least.
        count: how many are wanted.
        early: seeds that tell most; a part of the schedules are of these, and the other kinds have their turns after.
    """
    best = [Trial(*seed) for seed in early[: int(TELLING * count)]]
    order: list[tuple[float, Trial]] = []
    for kind, weight in kinds.items():
        known = [seed for its, seed in ran if its == kind]
        often = sum(seed < tried for seed in known) / tried if ran else 1.0
        if not known and ran:
            if len(ran) >= tried:
                continue
            often = 1 / (2 * tried)
        first = max([tried - 1, *known]) + 1 if ran else 0
        order += [((rank + 1) / weight, Trial(kind, seed)) for rank, seed in enumerate(known)]
        for number in range(count if known else 0):
            again = Trial(kind, known[number % len(known)], 1 + number // len(known))
            order.append(((len(known) + RUNS_AGAIN * (number + 1)) / weight, again))
        for number in range(count if often else 0):
            order.append(((len(known) + (number + 1) / often) / weight, Trial(kind, first + number)))
    others = (trial for _, trial in sorted(order, key=lambda item: item[0]))
    return list(dict.fromkeys((*best, *others)))[:count]
