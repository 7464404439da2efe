"""How one types what a product shall do: the user's own expression, with a keyword."""

import ast
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._source.syntax import Span, encloses, expression, span

# Where functions of JAX that take a precision are found by their names.
_MODULES = jnp, lax, jnp.linalg, jax.scipy.signal
# Longer expressions are shown with "..." for their arguments.
_LONGEST = 160


def with_keyword(
    calls: Iterable[tuple[CodeType, int]], name: str, value: str
) -> list[str] | None:
    """Expressions of a line with a keyword for each of their products.

    Args:
        calls: the functions and instructions that make the products.
        name: of the keyword: "precision", "preferred_element_type".
        value: what to give them: "jax.lax.Precision.HIGHEST".

    Returns:
        The outermost expressions; None if one is not found, or takes no such keyword.
    """
    found = {span(node): node for call in calls if (node := expression(*call))}
    if not found or any(_takes(node, name) is None for node in found.values()):
        return None
    if len({call[1] for call in calls}) > len(found):
        return None
    keyword, texts = ast.keyword(name, _parsed(value)), []
    for place, node in found.items():
        if not any(encloses(other, place) for other in found):
            text = ast.unparse(_Given(found.keys(), keyword).visit(copy.deepcopy(node)))
            texts += (
                [text]
                if len(text) <= _LONGEST
                else _short(found, place, ast.unparse(keyword))
            )
    return texts


def _short(
    found: dict[Span, ast.expr | ast.AugAssign], outer: Span, keyword: str
) -> Iterator[str]:
    """Each of the products of a long expression, without its arguments."""
    functions = {
        ast.unparse(node.func) if isinstance(node, ast.Call) else "jnp.matmul"
        for place, node in found.items()
        if place == outer or encloses(outer, place)
    }
    return (f"{name}(..., {keyword})" for name in sorted(functions))


class _Given(ast.NodeTransformer):
    """Gives a keyword to the products at some places."""

    def __init__(self, places: Iterable[Span], keyword: ast.keyword):
        self._places, self._keyword = {*places}, keyword

    def visit(self, node: ast.AST) -> Any:
        is_product = span(node) in self._places
        node = self.generic_visit(node)
        make = _takes(node, self._keyword.arg or "") if is_product else None
        return node if make is None else make(node, self._keyword)


def _takes(node: ast.AST, keyword: str) -> Callable[[Any, ast.keyword], ast.AST] | None:
    """What gives a product a keyword; None if it takes none."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return lambda node, keyword: _matmul(node.left, node.right, keyword)
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.MatMult):
        return _assigned
    # Python's own `matmul` takes none.
    if not isinstance(node, ast.Call) or ast.unparse(node.func).startswith("operator."):
        return None
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    for function in (getattr(module, name, None) for module in _MODULES):
        named = [*inspect.signature(function).parameters.values()] if function else []
        place = next((n for n, x in enumerate(named) if x.name == keyword), None)
        if place is not None:
            is_free = named[place].kind is inspect.Parameter.KEYWORD_ONLY
            return _with_keyword if is_free or len(node.args) <= place else None
    return None


def _with_keyword(call: ast.Call, keyword: ast.keyword) -> ast.Call:
    others = [each for each in call.keywords if each.arg != keyword.arg]
    return ast.Call(call.func, call.args, [*others, keyword])


def _matmul(left: ast.expr, right: ast.expr, keyword: ast.keyword) -> ast.Call:
    return ast.Call(_parsed("jnp.matmul"), [left, right], [keyword])


def _assigned(node: ast.AugAssign, keyword: ast.keyword) -> ast.Assign:
    made = _matmul(_parsed(ast.unparse(node.target)), node.value, keyword)
    return ast.Assign([node.target], made, lineno=node.lineno)


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
