"""How one types that a line computes wider: the user's expression, its operands cast.

Only where it is certain what of the expression is a floating array: each of its operands
is then one of the arrays that the equations of the line take.
"""

import ast
import functools
import inspect
from collections.abc import Container, Iterator, Sequence
from types import CodeType

import jax
import jax.numpy as jnp
from jax import lax

from .._explain.rewritten import changed, evaluable
from .._explain.written import atom
from .._leaves.dtypes import kind
from .._leaves.rows import cast_text
from .._leaves.types import DType, Equation
from .._lines.equations import Written
from .._numbers.nodes import CALL, Node
from .._program.graph import SHAPES, Stack
from .._source.syntax import Span, encloses, expression, is_cast, parsed, root, span

# Where functions of JAX are found by their names.
_MODULES = jnp, lax, jax.nn, jnp.linalg, jnp.fft, jax.scipy.special, jax.scipy.linalg
# What gives an array that the function is given, but for its place or shape.
_MOVES = frozenset([*SHAPES, "gather", "dynamic_slice", "concatenate"])
# Longer expressions are not written out.
_LONGEST = 120


class _Unsure(Exception):
    """It is not known what of an expression is an array."""


def widened(nodes: Sequence[Node], dtype: str, keeps: bool) -> list[str]:
    """The expressions of a line with their operands cast; empty where that is unsure.

    Args:
        nodes: the equations of the line.
        dtype: to cast to.
        keeps: whether the results stay so; else they are cast back.
    """
    try:
        return [*dict.fromkeys(_written(nodes, dtype, keeps))]
    except _Unsure:
        return []


def _written(nodes: Sequence[Node], dtype: str, keeps: bool) -> Iterator[str]:
    line = _Line([node for node in nodes if not node.is_backward])
    for outer in line.roots:
        leaves = [*line.leaves(outer)]
        node = evaluable(outer)
        if node is None or len({*map(ast.unparse, leaves)}) != line.count(outer):
            raise _Unsure
        casts = {x: cast_text(dtype, atom(x, ast.unparse(x))) for x in leaves}
        text = ast.unparse(changed(node, casts))
        if not leaves or len(text) > _LONGEST:
            raise _Unsure
        text = text if keeps else cast_text(line.dtype(outer), atom(node, text))
        is_assigned = isinstance(outer, ast.AugAssign)
        yield f"{ast.unparse(outer.target)} = {text}" if is_assigned else text


class _Line:
    """The equations of a line by the expressions that make them.

    Of a function of JAX's, jitted or not, that is the call that the user has written.
    """

    def __init__(self, nodes: Sequence[Node]):
        self._nodes = dict[Span, ast.expr | ast.AugAssign]()
        # In the order of the program, each once, with its place.
        self._stacks = dict[int, tuple[Span, Stack]]()
        self._computing, self._variables = set[Span](), frozenset[str]()
        for node in nodes:
            stack = _outermost(node.stack)
            calls = Written(stack).calls[:2]
            written, *around = [expression(*call) for call in calls] or [None]
            if written is None or any(map(_asks_for_a_dtype, ast.walk(written))):
                raise _Unsure
            place = span(written)
            if any(x is not None and encloses(span(x), place) for x in around):
                raise _Unsure  # of a function that is written in its call: `jax.grad(...)`
            self._nodes[place] = written
            self._variables = _variables(calls[0][0])
            self._stacks[id(stack[0])] = place, stack
            if node.rule != CALL and node.name not in _MOVES:
                self._computing.add(place)
        is_inside = lambda x: any(encloses(y, x) for y in self._computing - {x})
        self.roots = [self._nodes[x] for x in self._computing if not is_inside(x)]

    def _within(self, outer: Span) -> list[tuple[Span, Stack]]:
        """What computes in an expression, the first time that it is evaluated."""
        inside = lambda place: (
            place in self._computing and (place == outer or encloses(outer, place))
        )
        every = [each for each in self._stacks.values() if inside(each[0])]
        around = _around(every[0][1])
        every = [each for each in every if _around(each[1]) == around]
        names = [(place, stack[0].primitive.name) for place, stack in every]
        sizes = (n for n in range(1, len(every) + 1) if len(every) % n == 0)
        size = next(n for n in sizes if names == names[:n] * (len(every) // n))
        return every[:size]

    def count(self, root: ast.AST) -> int:
        """How many arrays an expression takes."""
        equations = [stack[0] for _, stack in self._within(span(root))]
        made = {id(var) for eqn in equations for var in eqn.outvars}
        taken = {id(var): var for eqn in equations for var in eqn.invars}
        arrays = [x for n, x in taken.items() if n not in made and not hasattr(x, "val")]
        if any(kind(getattr(x.aval, "dtype", None)) != "float" for x in arrays):
            raise _Unsure
        return len(arrays)

    def _last(self, node: ast.AST) -> Equation:
        """The equation that makes the value of an expression."""
        place = span(node)
        made = [stack[0] for each, stack in self._within(place) if each == place]
        if not made:  # another function on the line, given to the call
            raise _Unsure
        return made[-1]

    def dtype(self, root: ast.AST) -> DType:
        """That of the value of an expression."""
        dtypes = {var.aval.dtype for var in self._last(root).outvars}
        if len(dtypes) > 1:
            raise _Unsure
        return dtypes.pop()

    def leaves(self, node: ast.AST) -> Iterator[ast.expr]:
        """The operands that are arrays, as the source has them."""
        if isinstance(node, ast.Constant):
            return
        if span(node) in self._computing:
            for operand in self._operands(node):
                yield from self.leaves(operand)
            return
        is_known = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
        if not is_known or any(encloses(span(node), x) for x in self._computing):
            raise _Unsure
        yield node

    def _operands(self, node: ast.AST) -> Sequence[ast.AST]:
        if isinstance(node, ast.UnaryOp):
            return [node.operand]
        if isinstance(node, ast.Call):
            return _arguments(node, self._variables)
        if isinstance(node, ast.BinOp):
            pair = node.left, node.right
        elif isinstance(node, ast.AugAssign):
            pair = node.target, node.value
        else:
            raise _Unsure
        # A Python number is a literal there.
        return [x for x, y in zip(pair, self._last(node).invars) if not hasattr(y, "val")]


def _arguments(call: ast.Call, variables: Container[str]) -> list[ast.AST]:
    """The arguments of a function or a method of JAX's that are arrays."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    owner = getattr(call.func, "value", None)
    first = root(owner)  # of a method, that is an array
    is_method = isinstance(first, ast.BinOp) or getattr(first, "id", "") in variables
    given = [owner, *call.args] if is_method else [*call.args]
    function = next((x for m in _MODULES if callable(x := getattr(m, name, None))), None)
    named = {each.arg: each.value for each in call.keywords if each.arg}
    if function is None or any(isinstance(x, ast.Starred) for x in given):
        raise _Unsure
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*given, **named).arguments
    except (TypeError, ValueError):
        raise _Unsure from None
    types = {x: str(signature.parameters[x].annotation) for x in bound}
    if not _NOT_CAST.isdisjoint(bound) or not any("Array" in x for x in types.values()):
        raise _Unsure
    others = [x for node in call.args for x in ast.walk(node) if is_method]
    if any(isinstance(x, (ast.Name, ast.Call)) for x in others):  # `xp.sum(x)` is none
        raise _Unsure
    return [node for x, node in bound.items() if "Array" in types[x]]


# Arguments with which the dtype of the operands is not that of the result, or no array.
_NOT_CAST = frozenset(["dtype", "preferred_element_type", "out", "where", "args"])


def _asks_for_a_dtype(node: ast.AST) -> bool:
    return is_cast(node) or (isinstance(node, ast.Attribute) and node.attr == "dtype")


def _outermost(stack: Stack) -> Stack:
    """The call of a function of JAX's that an equation is part of, or the equation."""
    calls = Written(stack).calls[:1]
    numbers = range(len(stack) - 1, 0, -1)
    return stack[next((n for n in numbers if Written(stack[n:]).calls[:1] == calls), 0) :]


def _around(stack: Stack) -> object:
    return Written(stack).calls[1:], tuple(map(id, stack[1:]))


@functools.lru_cache(64)
def _variables(code: CodeType) -> frozenset[str]:
    """The names that a function, or one around it, assigns, but for what is imported."""
    module = parsed(code.co_filename)
    imported = (
        (each.asname or each.name).partition(".")[0]
        for node in (ast.walk(module) if module else ())
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for each in node.names
    )
    names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return frozenset(names.difference(imported))
