"""What can be changed about a node of a syntax tree, and the tree with that change."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

Edit = Callable[[ast.AST], ast.AST | None]


def edits(node: ast.AST) -> Iterator[tuple[str, Edit]]:
    """What can be changed about a node; None in the place of a node leaves a statement out."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield "condition turned round", _negate
    elif isinstance(node, ast.BoolOp):
        yield "and for or", _other_bool
    elif isinstance(node, ast.Return) and isinstance(node.value, (ast.Compare, ast.BoolOp)):
        yield "answer turned round", _negate_value
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)) and not _is_text(node):
        yield "plus for minus", _other_sign
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        yield "min for max", _other_end
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "true for false", lambda old: ast.Constant(value=not old.value)  # type: ignore[attr-defined]
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and node.value > 1:
        yield "four times as much", lambda old: ast.Constant(value=old.value * 4)  # type: ignore[attr-defined]
        yield "a quarter", lambda old: ast.Constant(value=old.value / 4)  # type: ignore[attr-defined]
    elif _is_left_out(node):
        yield "left out", lambda _: None


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        return isinstance(_target(node), ast.Attribute)
    return isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await))


def _negate(node: ast.AST) -> ast.AST:
    node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)  # type: ignore[attr-defined]
    return node


def _negate_value(node: ast.AST) -> ast.AST:
    node.value = ast.UnaryOp(op=ast.Not(), operand=node.value)  # type: ignore[attr-defined]
    return node


def _other_bool(node: ast.AST) -> ast.AST:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()  # type: ignore[attr-defined]
    return node


def _other_sign(node: ast.AST) -> ast.AST:
    node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()  # type: ignore[attr-defined]
    return node


def _other_end(node: ast.AST) -> ast.AST:
    node.func.id = "max" if node.func.id == "min" else "min"  # type: ignore[attr-defined]
    return node


def _target(node: ast.Assign | ast.AugAssign) -> ast.expr:
    return node.targets[0] if isinstance(node, ast.Assign) else node.target


def _is_text(node: ast.AST) -> bool:
    return any(isinstance(each, (ast.JoinedStr, ast.List, ast.Tuple)) for each in ast.walk(node)) or any(
        isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(node)
    )


class Replace(ast.NodeTransformer):
    """Puts what an edit makes of one node in its place."""

    def __init__(self, node: ast.AST, edit: Edit) -> None:
        self._node = node
        self._edit = edit

    def visit(self, node: ast.AST) -> ast.AST:
        if node is not self._node:
            return self.generic_visit(node)
        return self._edit(node) or ast.Pass()
