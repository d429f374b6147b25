"""What `make check`, `make test` and `make test-all` run: no promise only in the last, and all that name them agree."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tested_on
from tests.architecture import no_garbage_looked_for
from tests.tiers import each_third, first_of, longer, variants

REPOSITORY = Path(__file__).parents[1]
MAKEFILE = (REPOSITORY / "Makefile").read_text()
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text()
CI = (REPOSITORY / ".ci" / "run").read_text()
# Files whose Slurm tests are all variants, of what other files keep in `make test`.
WHOLLY_VARIANTS = {
    "benchmarks/test_programs.py",
    "cli/test_hung_slurm.py",
    "compat/test_crash_and_resume.py",
    "compat/test_surroundings.py",
    "integration/test_local_training.py",
    "integration/test_slurm_copies.py",
    "integration/test_slurm_hydra.py",
    "integration/test_slurm_job_end.py",
    "integration/test_slurm_python_door.py",
    "integration/test_slurm_snapshot.py",
    "integration/test_slurm_survival_surroundings.py",
    "integration/test_slurm_useful_time.py",
    "integration/test_slurm_word.py",
    "integration/test_training.py",
    "integration/test_tutorials.py",
}


@functools.cache
def files() -> dict[str, ast.Module]:
    """Every file of tests, by its path below tests/."""
    folder = REPOSITORY / "tests"
    with no_garbage_looked_for():
        return {path.relative_to(folder).as_posix(): ast.parse(path.read_text()) for path in folder.rglob("test_*.py")}


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
            yield node


def marks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The names of a test's own marks."""
    texts = [ast.unparse(decorator) for decorator in function.decorator_list]
    return {found[1] for text in texts if (found := re.match(r"pytest\.mark\.(\w+)", text))}


def makes_variants(function: ast.expr) -> bool:
    """Whether this is `pytest.mark.variant`, or a helper that sets it."""
    is_mark = isinstance(function, ast.Attribute) and ast.unparse(function) == "pytest.mark.variant"
    return is_mark or (isinstance(function, ast.Name) and function.id in ("variants", "parts_of", "each_third"))


def named_variants() -> Iterator[tuple[str, str]]:
    """Where each test or case is that `make test` leaves out, and the test that keeps its promise there."""
    for path, tree in sorted(files().items()):
        text = (REPOSITORY / "tests" / path).read_text()
        is_marked = "variant" in text or "each_third" in text
        for node in ast.walk(tree) if is_marked else ():
            if isinstance(node, ast.Call) and makes_variants(node.func):
                (of,) = [keyword.value for keyword in node.keywords if keyword.arg == "of"]
                yield f"tests/{path}:{node.lineno}", ast.literal_eval(of)


def kept_by_make_test() -> set[str]:
    """The names of all tests of which at least one case is no variant."""
    return {test.name for tree in files().values() for test in functions(tree) if "variant" not in marks(test)}


@pytest.mark.long
def test_what_make_test_leaves_out_is_a_variant_of_a_test_that_it_runs() -> None:
    kept = kept_by_make_test()
    assert [f"{place}: {name}" for place, name in named_variants() if name not in kept] == []
    assert len(list(named_variants())) > 100


@pytest.mark.long
def test_a_whole_file_is_no_variant() -> None:
    """Its tests say it one by one, so that each names what keeps its promise."""
    marked = [text for tree in files().values() if (text := file_marks(tree))]
    assert [text for text in marked if "variant" in text] == []
    assert len(marked) > 20


def file_marks(tree: ast.Module) -> str:
    """The marks of a whole file."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    return "".join(ast.unparse(node.value) for node in assigned if ast.unparse(node.targets[0]) == "pytestmark")


def uses_slurm(tree: ast.Module, test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    fixtures = {argument.arg for argument in test.args.args}
    return (
        "mark.slurm" in file_marks(tree)
        or "slurm" in marks(test)
        or bool(fixtures & {"slurm", "slurm_session", "slurm_door"})
    )


@pytest.mark.long
def test_make_test_runs_something_of_each_file_of_slurm_tests() -> None:
    of_slurm = {path: [test for test in functions(tree) if uses_slurm(tree, test)] for path, tree in files().items()}
    left_out = {path for path, found in of_slurm.items() if found and all("variant" in marks(test) for test in found)}
    assert left_out == WHOLLY_VARIANTS
    assert sum(map(bool, of_slurm.values())) > 30


@pytest.mark.long
def test_make_check_starts_no_run() -> None:
    found = [(path, test) for path, tree in files().items() for test in functions(tree) if starts_runs(test)]
    of_files = {path: file_marks(tree) for path, tree in files().items()}
    unmarked = [f"{path}::{test.name}" for path, test in found if not {"local", "slurm"} & marks(test)]
    assert [name for name in unmarked if "mark.local" not in of_files[name.partition("::")[0]]] == []
    assert len(found) > 100


def starts_runs(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a test has the command of a user on this machine, which starts agents and workers."""
    return "door" in {argument.arg for argument in test.args.args}


@pytest.mark.long
def test_a_test_is_on_every_slurm_in_one_way() -> None:
    found = [test for tree in files().values() for test in functions(tree)]
    assert [test.name for test in found if {"every_slurm", "mirrored"} <= marks(test)] == []


def recipe(target: str) -> str:
    """What make runs for a target, with its own variables as they stand."""
    (found,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return str(found)


def option(text: str, name: str) -> str:
    (found,) = re.findall(rf'{name}[ =]"?([^"\n]*?)"?(?= -|\s\$|\n|$)', text)
    return str(found)


def test_each_target_selects_what_the_table_of_tested_versions_calls_it() -> None:
    selected = {target: recipe(target) for target in ("check", "test", "test-slurm")}
    assert {option(text, "-m"): target for target, text in selected.items()} | {"": "test-all"} == tested_on.TIERS
    assert " -m " not in recipe("test-all")


def test_continuous_integration_requires_the_slurms_of_make_test() -> None:
    own, *others = option(recipe("test"), "--slurm").split(",")
    assert own == "own"
    (required, command) = re.findall(r"HPC_ELASTIC_REQUIRE_SLURM=(\S+) (make \S+) 2>&1", CI)[0]
    assert (required.split(","), command) == (["1", *others], "make test")
    assert re.findall(r"slurm_sandbox prepare (\S+);", CI) == others
    environments = re.search(r"^test: (.*)$", MAKEFILE, re.MULTILINE)
    assert environments is not None
    assert f"\nmake {environments[1]}\n" in CI


def test_contributing_names_the_slurms_of_make_test() -> None:
    assert f"`make test` names {option(recipe('test'), '--slurm')}" in CONTRIBUTING


@pytest.mark.parametrize("mark", ["long", "local", "slurm", "every_slurm", "mirrored", "cgroups", "variant", "gpu"])
def test_contributing_has_a_row_for_each_mark(mark: str) -> None:
    assert re.search(rf"^\| `{mark}[`(]", CONTRIBUTING, re.MULTILINE)
    assert re.search(rf'^    "{mark}[:(]', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)


def test_longer_cases_have_the_mark() -> None:
    assert [(each.values, [mark.name for mark in each.marks]) for each in longer(1, (2, 3))] == [
        ((1,), ["long"]),
        ((2, 3), ["long"]),
    ]


def test_the_first_cases_have_no_mark() -> None:
    cases = first_of({"one": 1, "two": (2, 3)}, 1)
    assert [(each.id, each.values, len(each.marks)) for each in cases] == [("one", (1,), 0), ("two", (2, 3), 1)]


def test_each_third_case_has_no_mark() -> None:
    cases = each_third("abcd", of="test_variants_are_cases_with_the_mark")
    assert [case if isinstance(case, str) else case.values for case in cases] == ["a", ("b",), ("c",), "d"]


def test_variants_are_cases_with_the_mark() -> None:
    one, two = variants(1, ("a", "b"), of="test_variants_are_cases_with_the_mark", ids=["x", "y"])
    assert [(each.values, each.id) for each in (one, two)] == [((1,), "x"), (("a", "b"), "y")]
    assert [(mark.name, mark.kwargs) for each in (one, two) for mark in each.marks] == [
        ("variant", {"of": "test_variants_are_cases_with_the_mark"})
    ] * 2
