"""docs/reference/slurm-versions.md is held against the code: what we use of Slurm has a row, and each row is used."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from hpc_elastic.render import directives
from hpc_elastic.scheduler.protocol import JobState
from hpc_elastic.scheduler.slurm import commands, output
from tests.architecture import PACKAGE, read_package

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs/reference/slurm-versions.md"
TEMPLATES = sorted((REPOSITORY / "templates/slurm").glob("*.j2"))
RELEASES = ("20.11", "21.08", "22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05")
REAL = ("22.05", "24.11", "26.05")  # what tests can run
CELL = re.compile(r"(?:T|r|no)(?: ([a-z]))?")
PROGRAMS = ("sbatch", "srun", "squeue", "sacct", "scancel", "scontrol", "sinfo")
VARIABLE = re.compile(r"(?:SLURMD?|SBATCH|SRUN|SQUEUE|SACCT|SCANCEL|SINFO|SCONTROL)(?:_[A-Z]+)*_[A-Z]*")


@cache
def tables() -> dict[str, dict[str, list[str]]]:
    """By its section: the cells of each row with a column for each release, by what the row is about."""
    found = {}
    for section in re.split(r"^#+ ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        rows = [
            [cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")
        ]
        is_of_releases = bool(rows) and all(re.fullmatch(r"\d\d\.\d\d", cell) for cell in rows[0][1:])
        if is_of_releases:
            assert tuple(rows[0][1:]) == RELEASES, f"RELEASES of this file are not those of {section.splitlines()[0]}"
            names = [re.fullmatch(r"`(.+)`", row[0]) for row in rows[2:]]
            assert all(names), section
            found[section.splitlines()[0]] = {
                name[1]: row[1:] for name, row in zip(names, rows[2:], strict=True) if name
            }
            assert len(found[section.splitlines()[0]]) == len(rows) - 2, f"a row twice in {section.splitlines()[0]}"
    return found


def named(title: str) -> set[str]:
    return set(tables()[title])


@cache
def trees() -> dict[str, ast.Module]:
    """Each module of the package, by its name."""
    return {name: module.tree for name, module in read_package(PACKAGE).items()}


def strings(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def sbatch_options() -> set[str]:
    """The first of each pair, and each key, in the module that writes `#SBATCH` lines."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(directives))):
        if isinstance(node, ast.Tuple) and len(node.elts) == 2:
            found |= set(strings(node.elts[0]))
        elif isinstance(node, ast.Dict):
            found |= {text for key in node.keys if key is not None for text in strings(key)}
    return {f"--{name}" for name in found}


def srun_options() -> set[str]:
    """Those of the template and of `step_options`."""
    template = (REPOSITORY / "templates/slurm/job.sh.j2").read_text()
    command = re.search(r"^(?:\w+=\S+ )*(?:\\\n *)?srun (?:.*\\\n|\{%.*\n)*", template, re.MULTILINE)
    assert command is not None
    steps = inspect.getsource(directives.step_options) + inspect.getsource(directives._gpu_options)
    said = set(strings(ast.parse(steps)))
    written = {f"--{text}" for text in said if re.fullmatch(r"[a-z]+(?:-[a-z]+)+|gres", text)}
    whole = {text.rstrip("=") for text in said if re.fullmatch(r"--[a-z-]+[a-z]=?", text)}
    return {*re.findall(r"--[a-z-]+", command[0]), *written, *whole}


def built_commands() -> list[list[str]]:
    """What each builder makes."""
    builders = [
        member for name, member in inspect.getmembers(commands, inspect.isfunction) if name.endswith("_command")
    ]
    made = []
    for builder in builders:
        parameters = inspect.signature(builder).parameters.values()
        values = [["1"] if str(parameter.annotation).startswith("Sequence") else "1" for parameter in parameters]
        named = {
            each.name: value for each, value in zip(parameters, values, strict=True) if each.kind is each.KEYWORD_ONLY
        }
        made.append(builder(*values[: len(values) - len(named)], **named))
    return made


@cache
def written_commands() -> list[list[str]]:
    """Lists in other modules that begin with a command of Slurm's."""
    found = []
    for name, tree in trees().items():
        if not name.endswith(".slurm.commands"):
            for node in ast.walk(tree):
                if isinstance(node, ast.List) and node.elts and isinstance(node.elts[0], ast.Constant):
                    words = [next(strings(element), "") for element in node.elts]
                    if words[0] in PROGRAMS and len(words) > 1:
                        found.append(words)
    return found


def options_of(program: str) -> set[str]:
    """The options of each command line of this program."""
    lines = [*built_commands(), *written_commands()]
    return {word.partition("=")[0] for line in lines if line[0] == program for word in line if word.startswith("-")}


def without_ending(variable: str) -> str:
    return variable.rstrip("*").rstrip("_")


@cache
def variables() -> set[str]:
    """Slurm's variables, and prefixes of them, that the package and its templates name."""
    found: set[str] = set()
    for tree in trees().values():
        found |= {text for text in strings(tree) if VARIABLE.fullmatch(text)}
    for template in TEMPLATES:
        code = "\n".join(line for line in template.read_text().splitlines() if not line.lstrip().startswith("#"))
        found |= set(re.findall(r"\bS(?:LURM|RUN)_[A-Z_]+", code))
    return {without_ending(name) for name in found}


@pytest.mark.long
def test_every_option_of_sbatch_has_a_row() -> None:
    options = sbatch_options() | options_of("sbatch")
    assert {"--nodes", "--mem-per-gpu", "--no-requeue", "--array", "--parsable"} <= options
    assert named("sbatch") == options


@pytest.mark.long
def test_every_option_of_srun_has_a_row() -> None:
    options = srun_options() | options_of("srun")
    assert {"--no-kill", "--wait", "--gpus-per-node", "--gres", "--cpus-per-task", "--output"} <= options
    of_pyxis = {option for option in options if option.startswith("--container-")}
    assert "--container-image" in of_pyxis
    assert named("srun") == options - of_pyxis


@pytest.mark.long
def test_every_option_and_field_of_squeue_has_a_row() -> None:
    assert "exit_code" in commands.QUEUE_FIELDS
    fields = {*commands.QUEUE_FIELDS, *commands.OUTLOOK_FIELDS, commands.EXCLUDED_FIELD}
    fields |= {*commands.QUEUE_IDENTITY_FIELDS}
    assert named("squeue") == options_of("squeue") | fields


@pytest.mark.long
def test_every_option_and_field_of_sacct_has_a_row() -> None:
    fields = {*commands.ACCOUNTING_FIELDS, *commands.ACCOUNTING_IDENTITY_FIELDS}
    assert named("sacct") == options_of("sacct") | fields


@pytest.mark.long
def test_every_use_of_the_other_commands_has_a_row() -> None:
    used = {f"{program} {option}" for program in ("scancel", "sinfo") for option in options_of(program)}
    used |= {f"scontrol {line[1]}" for line in [*built_commands(), *written_commands()] if line[0] == "scontrol"}
    used |= {"scancel"}
    assert {"scancel --state", "scancel --signal", "scontrol requeue", "sinfo --format"} <= used
    assert named("scancel, scontrol, sinfo") == used


@pytest.mark.long
def test_every_variable_of_slurms_has_a_row() -> None:
    listed = {without_ending(name) for title in ("Read", "Passed on", "Set for workers") for name in named(title)}
    listed |= {without_ending(name) for name in named("Kept from sbatch and the other commands")}
    assert {"SLURM_STEP_NODELIST", "SLURM_TASK_PID", "SLURMD_NODENAME", "SBATCH_QOS"} <= variables()
    assert listed == variables()


def test_every_state_has_a_row() -> None:
    ours = {state.value for state in JobState} - {"GONE"}
    assert named("States") == {*output._STATES} | ours


def test_every_word_that_decides_has_a_row() -> None:
    tree = ast.parse(inspect.getsource(output))
    compared = {
        node.left.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn))
        if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str) and " " in node.left.value
    }
    ends = {
        text
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "endswith"
        for text in strings(ast.Module([ast.Expr(argument) for argument in node.args], []))
    }
    assert named("Words that decide") == compared | ends


@pytest.mark.parametrize("title", sorted(tables()))
def test_each_cell_says_how_it_is_known(title: str) -> None:
    for name, row in tables()[title].items():
        assert all(CELL.fullmatch(cell) for cell in row), name
        tested = {release for release, cell in zip(RELEASES, row, strict=True) if cell[0] == "T"}
        assert title == "sacct" or tested in (set(), set(REAL)), name


def test_every_change_has_a_source_and_is_met_by_a_row() -> None:
    text = PAGE.read_text()
    changes = dict(re.findall(r"^- \*\*([a-z])\*\* (.+(?:\n  .+)*)", text, re.MULTILINE))
    marks = {
        found[1]
        for rows in tables().values()
        for row in rows.values()
        for cell in row
        if (found := CELL.fullmatch(cell))
    }
    in_prose = set(re.findall(r"\| ([a-z])(?:: [^|]+)? \|$", text, re.MULTILINE))
    assert (marks - {None}) | in_prose == set(changes)
    for mark, words in changes.items():
        assert re.search(r"\b\d\d\.\d\d", words), mark
        assert re.search(r"NEWS|CHANGELOG|RELEASE_NOTES|man page|test", words), mark


@pytest.mark.parametrize("release", REAL)
def test_sacct_is_said_to_be_tested_where_its_answers_were_captured(release: str) -> None:
    is_captured = (REPOSITORY / f"tests/captured/slurm-{release}/accounting-completed.json").exists()
    marks = {cells[RELEASES.index(release)][0] for cells in tables()["sacct"].values()}
    assert marks == {"T" if is_captured else "r"}
