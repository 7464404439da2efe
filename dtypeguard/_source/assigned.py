"""The expression that a variable has its value from, where one assignment alone gave it.

It is the last one before the line in the blocks around it. Where another may have run
since, in a branch, in a loop or in another function, none is certain.
"""

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from .syntax import contains, parsed

_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
_SCOPES = (*_FUNCTIONS, ast.ClassDef, ast.Lambda)
_LOOPS = ast.For, ast.AsyncFor, ast.While


def assigned_value(file: str, name: str, line: int) -> ast.expr | None:
    """The expression that a line uses a variable for; None if it is not certain.

    Args:
        file: of the line.
        name: of the variable.
        line: that uses it.
    """
    module = parsed(file)
    functions = [x for x in ast.walk(module) if isinstance(x, _FUNCTIONS)] if module else []
    around: list[Any] = [x for x in functions if contains(x, line)]
    around.sort(key=lambda scope: scope.lineno)
    for number, scope in enumerate(reversed([module, *around] if module else [])):
        stores = [*_stores(scope.body, name)]
        if stores and number:  # of a function around: it may go on since
            return _value(stores[0], name) if len(stores) == 1 else None
        if stores:
            return _last(scope.body, name, line)
        parameters = ast.walk(getattr(scope, "args", scope))
        if name in [x.arg for x in parameters if isinstance(x, ast.arg)]:
            return None
    return None


def _last(block: Sequence[Any], name: str, line: int) -> ast.expr | None:
    """What the last assignment before a line in a block, or in one around it, assigns."""
    known: ast.expr | None = None
    for node in block:
        if node.lineno > line:
            break
        stores = [*_stores([node], name)]
        if not stores:
            continue
        if node.end_lineno < line or node.lineno == line:
            known = _value(node, name) if node.end_lineno < line else known
            continue
        if isinstance(node, _LOOPS):
            known = None  # it may be of the turn before
        for part in _blocks(node):
            if any(contains(each, line) for each in part) and [*_stores(part, name)]:
                inner = [each for each in part if each.end_lineno < line]
                is_before = bool([*_stores(inner, name)]) or len(part) == 1
                known = _last(part, name, line) if is_before else known
    return known


def _blocks(node: Any) -> Iterator[Sequence[Any]]:
    yield from (getattr(node, field, ()) for field in ("body", "orelse", "finalbody"))
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def _stores(block: Sequence[ast.AST], name: str) -> Iterator[Any]:
    """The statements in a block, or the parts of them, that bind a name."""
    for node in block:
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and node.name == name:
            yield node
        if isinstance(node, _SCOPES):
            continue
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and _value(node, name):
            yield node
        elif isinstance(node, ast.Name) and node.id == name:
            yield from [] if isinstance(node.ctx, ast.Load) else [node]
        else:
            yield from _stores([*ast.iter_child_nodes(node)], name)


def _value(node: Any, name: str) -> ast.expr | None:
    """The expression that a statement assigns to a variable, whole."""
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    is_it = any(isinstance(x, ast.Name) and x.id == name for x in targets)
    return node.value if is_it and isinstance(node, (ast.Assign, ast.AnnAssign)) else None
