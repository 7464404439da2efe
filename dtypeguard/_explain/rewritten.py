"""Rewrites an expression of the source, to evaluate it as a note says to write it."""

import ast
import copy
from collections.abc import Callable, Mapping
from typing import Any

from .._source.syntax import contains, parsed, span, text_of


def evaluable(node: ast.AST | None) -> ast.expr | None:
    """An expression that may be changed and evaluated; None if a node is no expression."""
    node = copy.deepcopy(node)
    if isinstance(node, ast.AugAssign):
        node.target.ctx = ast.Load()
        node = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
    return node if isinstance(node, ast.expr) else None


def decorated(file: str, line: int, name: str) -> int | None:
    """The line of the `def` of a function that contains a line and has decorators."""
    module = parsed(file)
    found = [
        each.lineno
        for each in (ast.walk(module) if module else ())
        if isinstance(each, ast.FunctionDef) and each.name == name
        if each.decorator_list and contains(each, line)
    ]
    return max(found, default=None)


def changed(node: ast.expr, texts: Mapping[ast.expr, str]) -> ast.expr:
    """An expression with other text for parts of it, which are known by their places."""
    parts = {span(part): text for part, text in texts.items()}
    is_it = lambda x: isinstance(x, ast.expr) and span(x) in parts
    return _replaced(node, is_it, lambda x: ast.parse(parts[span(x)], mode="eval").body)


def text_with(node: ast.expr, part: ast.expr, text: str, file: str) -> str:
    """An expression as it is written, on one line, with other text for a part of it."""
    if node.lineno != node.end_lineno:
        return ast.unparse(changed(node, {part: text}))
    whole = text_of(node, file).encode()
    _, start, _, end = (column - node.col_offset for column in span(part))
    return (whole[:start] + text.encode() + whole[end:]).decode()


def computed(
    node: ast.expr, known: Mapping[str, str], is_pure: Callable[[ast.Call], bool]
) -> ast.expr | None:
    """An expression with the names of values for the calls that are not to run again.

    Args:
        node: the expression.
        known: the names, by the dumps of what has these values.
        is_pure: whether a call may run again.

    Returns:
        None if the value of such a call is not known.
    """
    is_call = lambda x: isinstance(x, ast.Call) and x is not node and ast.dump(x) in known
    node = _replaced(node, is_call, lambda x: ast.Name(known[ast.dump(x)], ast.Load()))
    later = {
        id(x) for y in ast.walk(node) if isinstance(y, ast.Lambda) for x in ast.walk(y)
    }
    calls = [x for x in ast.walk(node) if isinstance(x, ast.Call) and id(x) not in later]
    return ast.fix_missing_locations(node) if all(map(is_pure, calls)) else None


def _replaced(
    node: ast.expr, is_it: Callable[[ast.AST], bool], new: Callable[[Any], ast.expr]
) -> ast.expr:
    class Replacing(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new(node) if is_it(node) else self.generic_visit(node)

    found = Replacing().visit(node)
    assert isinstance(found, ast.expr)
    return found
