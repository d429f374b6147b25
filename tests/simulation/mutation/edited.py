"""Puts an edited function in the place of one that is loaded, and bounds what a run with it may take.

Theory of operation. A function that is loaded is known by where it was compiled: its file, its name, its line. The
edited module is compiled, and the code of the outermost function that the edit is in takes the place of the loaded
one's: all that hold the function, by whatever name, have the edit. What runs once, as the module is loaded (constants,
defaults, decorators), cannot be edited so.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import signal
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType

Key = tuple[str, str, int]  # of a function: its file, its name, its line
Functions = Mapping[Key, list[FunctionType]]


class EndlessError(BaseException):
    """A turn of a process does not end; no handler of the agent's errors is meant for it."""


def _key(code: CodeType) -> Key:
    return code.co_filename, code.co_name, code.co_firstlineno


def loaded_functions() -> Functions:
    """All that this process has."""
    found: dict[Key, list[FunctionType]] = {}
    gc.unfreeze()  # what a session of pytest has collected is frozen, and not among the objects then
    for each in gc.get_objects():
        if type(each) is FunctionType:  # isinstance asks an object for its class, and one of torch's warns of that
            found.setdefault(_key(each.__code__), []).append(each)
    return found


def replace_function(path: str, tree: ast.Module, edited: ast.Module, node: int, functions: Functions) -> bool:
    """Edit the loaded function that a node is in.

    Args:
        path: of the module.
        tree: as it is loaded.
        edited: with the edit.
        node: which node of the tree is edited, in the order of `ast.walk`.
        functions: the loaded ones.

    Returns:
        Whether that could be done.
    """
    function = _outermost(tree, list(ast.walk(tree))[node])
    if function is None:
        return False
    line = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    codes = [code for code in _codes(compile(edited, path, "exec")) if code.co_firstlineno == line]
    codes = [code for code in codes if code.co_name == function.name]
    if len(codes) != 1 or not (found := functions.get(_key(codes[0]))):
        return False
    if any(each.__code__.co_freevars != codes[0].co_freevars for each in found):
        return False
    for each in found:
        each.__code__ = codes[0]
    return True


def _outermost(node: ast.AST, wanted: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function that is in no other one and has the node in its body."""
    for child in ast.iter_child_nodes(node):
        if not any(each is wanted for each in ast.walk(child)):
            continue
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return _outermost(child, wanted)
        is_in_body = any(each is wanted for statement in child.body for each in ast.walk(statement))
        return child if is_in_body else None
    return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Of the functions of a module and of its classes."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


@contextlib.contextmanager
def bounded(cpu_s: float) -> Iterator[None]:
    """What is in the block may use the processor for so long.

    Raises:
        EndlessError: it is over.
    """

    def ring(*_: object) -> None:
        raise EndlessError(f"no turn ends within {cpu_s:g} s of the processor")

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    except EndlessError as error:
        raise RuntimeError(str(error)) from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
