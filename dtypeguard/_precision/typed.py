"""How one types that a product shall be precise: the user's own expression, with more."""

import ast
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._source.syntax import expression

# Where functions of JAX that take a precision are found by their names.
_MODULES = jnp, lax, jnp.linalg, jax.scipy.signal
# Longer expressions are shown with "..." for their arguments.
_LONGEST = 160

_Place = tuple[int, int, int, int]


def with_precision(
    calls: Iterable[tuple[CodeType, int]], precision: str
) -> list[str] | None:
    """Expressions of a line with a precision for each of their products.

    Args:
        calls: the functions and instructions that make the products.
        precision: what to give them: "jax.lax.Precision.HIGHEST".

    Returns:
        The outermost expressions; None if one is not found, or takes no precision.
    """
    found = {_place(node): node for call in calls if (node := expression(*call))}
    if not found or any(_takes(node) is None for node in found.values()):
        return None
    if len({call[1] for call in calls}) > len(found):
        return None
    texts = []
    for place, node in found.items():
        if not any(place != other and _contains(other, place) for other in found):
            text = ast.unparse(_Precise(found.keys(), precision).visit(copy.deepcopy(node)))
            texts += [text] if len(text) <= _LONGEST else _short(found, place, precision)
    return texts


def _short(
    found: dict[_Place, ast.expr | ast.AugAssign], outer: _Place, precision: str
) -> Iterator[str]:
    """Each of the products of a long expression, without its arguments."""
    functions = {
        ast.unparse(node.func) if isinstance(node, ast.Call) else "jnp.matmul"
        for place, node in found.items()
        if place == outer or _contains(outer, place)
    }
    return (f"{name}(..., precision={precision})" for name in sorted(functions))


class _Precise(ast.NodeTransformer):
    """Gives a precision to the products at some places."""

    def __init__(self, places: Iterable[_Place], precision: str):
        self._places, self._precision = {*places}, precision

    def visit(self, node: ast.AST) -> Any:
        is_product = _place(node) in self._places
        node = self.generic_visit(node)
        make = _takes(node) if is_product else None
        return node if make is None else make(node, _parsed(self._precision))


def _takes(node: ast.AST) -> Callable[[Any, ast.expr], ast.AST] | None:
    """What gives a product a precision; None if it takes none."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return lambda node, precision: _matmul(node.left, node.right, precision)
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.MatMult):
        return _assigned
    # Python's own `matmul` takes none.
    if not isinstance(node, ast.Call) or ast.unparse(node.func).startswith("operator."):
        return None
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    for function in (getattr(module, name, None) for module in _MODULES):
        named = [*inspect.signature(function).parameters.values()] if function else []
        place = next((n for n, x in enumerate(named) if x.name == "precision"), None)
        if place is not None:
            is_free = named[place].kind is inspect.Parameter.KEYWORD_ONLY
            return _with_keyword if is_free or len(node.args) <= place else None
    return None


def _with_keyword(call: ast.Call, precision: ast.expr) -> ast.Call:
    others = [each for each in call.keywords if each.arg != "precision"]
    return ast.Call(call.func, call.args, [*others, ast.keyword("precision", precision)])


def _matmul(left: ast.expr, right: ast.expr, precision: ast.expr) -> ast.Call:
    keyword = ast.keyword("precision", precision)
    return ast.Call(_parsed("jnp.matmul"), [left, right], [keyword])


def _assigned(node: ast.AugAssign, precision: ast.expr) -> ast.Assign:
    made = _matmul(_parsed(ast.unparse(node.target)), node.value, precision)
    return ast.Assign([node.target], made, lineno=node.lineno)


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _place(node: Any) -> _Place:
    names = "lineno", "end_lineno", "col_offset", "end_col_offset"
    line, end_line, column, end_column = (getattr(node, name, None) or 0 for name in names)
    return line, end_line, column, end_column


def _contains(outer: _Place, inner: _Place) -> bool:
    begins, ends = (outer[0], outer[2]), (outer[1], outer[3])
    return begins <= (inner[0], inner[2]) and (inner[1], inner[3]) <= ends
