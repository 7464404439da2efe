"""What an expression in the source says of the type of its value."""

import ast
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import dtype_of
from .._leaves.types import DType
from .._source.files import is_installed, is_recorded, is_users
from .._source.origin import Origin, origin_at
from .._source.syntax import evaluated, expression, returned

# These take the dtype of what they are called with.
_AS_IT_IS = (jnp.asarray, jnp.array, np.asarray, np.array, jax.device_put)
_LIKE = (jnp.zeros_like, jnp.ones_like, jnp.empty_like)


def asks_for(node: ast.AST, frame: FrameType, dtype: DType) -> list[int]:
    """The lines on which an expression chooses a dtype, as a cast does."""
    lines: set[int] = set()
    for each in ast.walk(node):
        named: Any = each.value if isinstance(each, ast.Constant) else None
        if isinstance(each, ast.Call) and evaluated(each.func, frame) in _LIKE:
            model = each.args[0] if each.args and each.keywords else None
            named = dtype_of(evaluated(model, frame))  # which has another shape
        if isinstance(each, (ast.Name, ast.Attribute)):
            named = evaluated(each, frame)
        is_scalar_type = isinstance(named, type) and issubclass(named, np.generic)
        if is_scalar_type or isinstance(named, (str, np.dtype, type(jnp.float32))):
            try:
                if np.dtype(named) == dtype:
                    lines.add(getattr(each, "lineno", 0))
            except (TypeError, ValueError, SyntaxError, Warning):  # another string
                continue
    return sorted(lines)


def model_of(node: ast.AST, frame: FrameType) -> ast.expr | None:
    """The `x` of a `zeros_like(x)`."""
    if not isinstance(node, ast.Call) or evaluated(node.func, frame) not in _LIKE:
        return None
    return node.args[0] if len(node.args) == 1 and not node.keywords else None


def result_of(node: ast.AST, frame: FrameType) -> Origin | None:
    """The line at which a function of the user's returns what an expression passes on."""
    while isinstance(node, ast.Call):
        function = evaluated(node.func, frame)
        code = getattr(function, "__code__", None)
        if code is not None and is_users(code.co_filename):
            result = None if is_installed(code.co_filename) else returned(code)
            if result is None:
                return None
            return origin_at(code.co_filename, result.lineno, code.co_qualname)
        given = node.args
        if function is jax.tree.map and len(given) == 2:
            function, given = evaluated(given[0], frame), given[1:]
        is_passed_on = function in _AS_IT_IS and len(given) == 1 and not node.keywords
        if not is_passed_on:
            return None
        node = given[0]
    return None


def passed(frame: FrameType, name: str) -> tuple[FrameType, ast.expr] | None:
    """What the user's call of a running function writes for a parameter.

    Args:
        frame: of the function.
        name: of the parameter.

    Returns:
        The caller and the expression; None if the call writes none, or is not the user's.
    """
    code, user = frame.f_code, frame.f_back
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if name not in names or not user or not is_recorded(user.f_code.co_filename):
        return None
    call = expression(user.f_code, user.f_lasti)
    if not isinstance(call, ast.Call) or any(isinstance(x, ast.Starred) for x in call.args):
        return None
    is_method = isinstance(call.func, ast.Attribute) and names[0] in ("self", "cls")
    given = dict(zip(names[is_method:], call.args))
    source = (given | {x.arg: x.value for x in call.keywords}).get(name)
    return (user, source) if source else None
