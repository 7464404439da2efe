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

_Place = tuple[int, int | None, int, int | None]


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
        return node if make is None else make(node, ast.parse(self._precision).body[0].value)


def _takes(node: ast.AST) -> Callable[[Any, ast.expr], ast.AST] | None:
    """What gives a product a precision; None if it takes none."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return lambda node, precision: _matmul(node.left, node.right, precision)
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.MatMult):
        return lambda node, precision: ast.Assign(
            [node.target], _matmul(_read(node.target), node.value, precision), lineno=0
        )
    if not isinstance(node, ast.Call):
        return None
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    known = (getattr(module, name, None) for module in _MODULES)
    for function in filter(callable, known):
        names = [*inspect.signature(function).parameters]
        if "precision" in names and len(node.args) <= names.index("precision"):
            return _with_keyword
        if "precision" in names and _is_keyword(function):
            return _with_keyword
    return None


def _is_keyword(function: Callable[..., Any]) -> bool:
    kinds = inspect.signature(function).parameters
    return kinds["precision"].kind is inspect.Parameter.KEYWORD_ONLY


def _with_keyword(call: ast.Call, precision: ast.expr) -> ast.Call:
    others = [each for each in call.keywords if each.arg != "precision"]
    return ast.Call(call.func, call.args, [*others, ast.keyword("precision", precision)])


def _matmul(left: ast.expr, right: ast.expr, precision: ast.expr) -> ast.Call:
    function = ast.parse("jnp.matmul").body[0].value
    return ast.Call(function, [left, right], [ast.keyword("precision", precision)])


def _read(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target)).body[0].value


def _place(node: Any) -> _Place:
    get = lambda name: getattr(node, name, None)
    return get("lineno"), get("end_lineno"), get("col_offset"), get("end_col_offset")


def _contains(outer: _Place, inner: _Place) -> bool:
    begins, ends = (outer[0], outer[2]), (outer[1], outer[3])
    return begins <= (inner[0], inner[2]) and (inner[1], inner[3]) <= ends
