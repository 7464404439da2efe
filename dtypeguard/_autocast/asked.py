"""Whether the source asks for float32: a cast that changes nothing leaves no equation.

`jax.nn.softmax(scores.astype(jnp.float32))` asks for it though `scores` is float32 already,
and so does a module with `dtype=jnp.float32`. It is read in the text of the line.
"""

import ast
import functools
from collections.abc import Iterator
from types import CodeType

from .._lines.tracebacks import calls_by_jaxpr
from .._program.graph import Stack
from .._source.files import is_installed
from .._source.syntax import assigned_value, expression, parsed

_WIDE = "float32", "float64"
_CASTS = "astype", "asarray", "array", "convert_element_type", *_WIDE
_MOVES = "reshape", "transpose", "swapaxes", "ravel", "squeeze", "T", "mT"
# So many variables are followed to their assignments.
_DEPTH = 3


def asks_for_float32(stack: Stack) -> bool:
    """Whether the line of an equation casts what it computes with to float32 itself.

    Args:
        stack: the equation and those around it, inside out.
    """
    for calls in calls_by_jaxpr(stack):
        for call in calls:
            if not is_installed(call[0].co_filename):
                return _asks(*call)
    return False


@functools.lru_cache(10_000)
def _asks(code: CodeType, instruction: int) -> bool:
    node, file = expression(code, instruction), code.co_filename
    if node is None:
        return False
    if isinstance(node, ast.Call) and _has_dtype(node, file):
        return True
    return any(_is_wide(each, code, _DEPTH) for each in _operands(node))


def _operands(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        yield from node.args
        yield from (each.value for each in node.keywords)
        if isinstance(node.func, ast.Attribute):
            yield node.func.value
    elif isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.AugAssign)):
        yield from (x for x in ast.iter_child_nodes(node) if isinstance(x, ast.expr))


def _is_wide(node: ast.expr, code: CodeType, depth: int) -> bool:
    """Whether an expression is a cast to float32, or a variable that was assigned one."""
    if isinstance(node, ast.Attribute) and node.attr in _MOVES:
        return _is_wide(node.value, code, depth)
    if isinstance(node, ast.Call):
        name = _last(node.func)
        if name in _MOVES and isinstance(node.func, ast.Attribute):
            return _is_wide(node.func.value, code, depth)
        given = [*node.args, *(each.value for each in node.keywords)]
        return name in _CASTS and (name in _WIDE or any(map(_is_dtype, given)))
    if isinstance(node, ast.Name) and depth and _is_variable(node.id, code):
        value = assigned_value(code.co_filename, node.id, node.lineno)
        return value is not None and _is_wide(value, code, depth - 1)
    return False


def _is_variable(name: str, code: CodeType) -> bool:
    """Whether a name is that of a variable to look up where a function is written.

    What a lambda is given is none of the variables of that name around it. What a module
    holds was made before the program, and asks for nothing.
    """
    if code.co_name == "<lambda>" and name in code.co_varnames:
        return False
    return name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars)


def _has_dtype(node: ast.Call, file: str) -> bool:
    """Whether a call, or what made the module that is called, has `dtype=float32`."""
    if any(each.arg == "dtype" and _is_dtype(each.value) for each in node.keywords):
        return True
    if isinstance(node.func, ast.Call):
        return _has_dtype(node.func, file)
    if not isinstance(node.func, ast.Attribute) or _last(node.func.value) != "self":
        return False
    made = [*_assigned_to_self(file, node.func.attr)]
    return bool(made) and all(_has_dtype(each, file) for each in made)


def _assigned_to_self(file: str, attribute: str) -> Iterator[ast.Call]:
    """The calls whose results a file assigns to an attribute of `self`."""
    module = parsed(file)
    for node in ast.walk(module) if module else ():
        value = node.value if isinstance(node, ast.Assign) else None
        targets = node.targets if isinstance(node, ast.Assign) else []
        is_own = f"self.{attribute}" in map(ast.unparse, targets)
        if is_own and isinstance(value, ast.Call):
            yield value


def _is_dtype(node: ast.expr) -> bool:
    is_text = isinstance(node, ast.Constant) and node.value in _WIDE
    return is_text or _last(node) in _WIDE


def _last(node: ast.expr) -> str:
    """The last name of `jnp.float32`."""
    return getattr(node, "attr", getattr(node, "id", ""))
