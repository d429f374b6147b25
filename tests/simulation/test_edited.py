"""An edit takes the place of the function that is loaded; what runs as a module is loaded is left as it is."""

from __future__ import annotations

import ast
import types
from typing import Any

import pytest

from tests.simulation.mutation.edited import bounded, loaded_functions, replace_function

SOURCE = """
LIMIT = 3

class Counter:
    def is_full(self, count):
        return [count > each for each in (LIMIT, 0)]

def decorated(function, count=2):
    def call():
        return function() + count
    return call

@decorated
def two():
    return 2
"""
PATH = "/simulated/counter.py"


@pytest.fixture
def module() -> Any:
    module: Any = types.ModuleType("counter")
    exec(compile(SOURCE, PATH, "exec"), vars(module))
    return module


def edit(find: type[ast.AST], **changes: object) -> tuple[ast.Module, ast.Module, int]:
    """The tree, the same with the first such node changed, and the number of that node."""
    tree, edited = ast.parse(SOURCE), ast.parse(SOURCE)
    number = next(number for number, node in enumerate(ast.walk(tree)) if isinstance(node, find))
    node = list(ast.walk(edited))[number]
    for name, value in changes.items():
        setattr(node, name, value)
    return tree, ast.fix_missing_locations(edited), number


@pytest.mark.long
def test_whoever_holds_the_function_has_the_edit(module: Any) -> None:
    counter = module.Counter()
    bound = counter.is_full
    tree, edited, node = edit(ast.Compare, ops=[ast.LtE()])
    assert bound(4) == [True, True]
    assert replace_function(PATH, tree, edited, node, loaded_functions())
    assert bound(4) == [False, False]


@pytest.mark.long
def test_an_edit_of_a_decorated_function_is_found_behind_its_decorator(module: Any) -> None:
    tree = ast.parse(SOURCE)
    number = next(n for n, node in enumerate(ast.walk(tree)) if isinstance(node, ast.Return) and node.lineno == 15)
    edited = ast.parse(SOURCE)
    list(ast.walk(edited))[number].value = ast.Constant(value=40)  # type: ignore[attr-defined]
    assert module.two() == 4
    assert replace_function(PATH, tree, ast.fix_missing_locations(edited), number, loaded_functions())
    assert module.two() == 42


@pytest.mark.long
def test_a_constant_and_a_default_cannot_be_edited_in_a_module_that_is_loaded(module: Any) -> None:
    tree = ast.parse(SOURCE)
    constants = [n for n, node in enumerate(ast.walk(tree)) if isinstance(node, ast.Constant) and node.lineno in (2, 8)]
    assert len(constants) == 2
    for number in constants:
        assert not replace_function(PATH, tree, tree, number, loaded_functions())


def test_a_turn_that_never_ends_is_ended() -> None:
    def never_ends() -> None:
        while True:
            pass

    with pytest.raises(RuntimeError, match="no turn ends"), bounded(0.05):
        never_ends()
