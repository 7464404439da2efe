"""The trial of a remedy: what it changes is traced again with it, on types alone."""

import contextlib
import inspect
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, FunctionType
from typing import Literal

import jax
import numpy as np
from jax import tree_util
from jax.core import Tracer
from jax.dtypes import float0

from .._carry.modules import objects
from .._carry.split import SplitTree
from .._guard.guard_step import guard_step
from .._leaves.dtypes import dtype_of, is_array, is_weak, kind
from .._leaves.types import Aval, DType, Function, Kwargs, Leaf, PyTree, Step
from .._lines.body import Body, difference
from .._lines.monitored import RECORD
from .._program.graph import open_jaxpr
from .._source.inert import variables_of

# True if the types agree, False if they do not, None if that is not known.
Outcome = bool | None


def untried() -> None:
    """The trial of what cannot be tried."""


def begins(body: Body, first: Mapping[int, Aval]) -> Outcome:
    """Whether leaves of a carry, by their places, come back as they are to begin."""
    carried = SplitTree(body.inputs[body.carry or 0])
    types = [first.get(n, _type(leaf)) for n, leaf in enumerate(carried.arrays)]
    now = _returned(body, body.function, types)
    before = _returned(body, body.function, [*map(_type, carried.arrays)])
    if not isinstance(now, list):
        return now
    was = before if isinstance(before, list) else now

    def is_right(number: int) -> bool:
        old, new = types[number], now[number]
        if not difference(old, new):
            return True
        is_as_before = not difference(new, was[number])
        return number not in first and (is_weak(old) or is_as_before)

    return all(map(is_right, range(len(types))))


def is_guarded(body: Body, places: Sequence[int]) -> Outcome:
    """Whether leaves of a carry come back as they begin if a guard is around the body."""
    carried = SplitTree(body.inputs[body.carry or 0]).arrays
    if any(is_weak(carried[place]) for place in places):
        return False  # a guard leaves what JAX promotes in a loop
    guarded = guard_step(body.function, carry=body.carry or 0)
    now = _returned(body, guarded, [*map(_type, carried)])
    if not isinstance(now, list):
        return now
    return not any(difference(carried[place], now[place]) for place in places)


def _returned(
    body: Body, function: Step, first: Sequence[Aval]
) -> list[Aval] | Literal[False] | None:
    """The types of the carry that a body returns for another first one."""
    inputs, position = list(body.inputs), body.carry or 0
    inputs[position] = SplitTree(inputs[position]).merged(first)

    def run(*given: PyTree) -> PyTree:
        result = function(*given)
        return SplitTree(result[0] if body.is_pair else result).arrays

    found: list[Aval] = []
    outcome = _tried(lambda: found.extend(_shapes(run, tuple(inputs))))
    return found if outcome else outcome


def branches_begin(
    bodies: Mapping[str, Body], kept: str, places: Sequence[int], to: DType
) -> Outcome:
    """Whether branches agree if what one of them hands on has another dtype."""
    found_operands = [_operand(bodies[kept], place) for place in places]
    operands = [operand for operand in found_operands if operand is not None]
    if len(operands) < len(places):
        return None
    found: list[list[Aval]] = []

    def trace() -> None:
        for body in bodies.values():
            leaves, tree = tree_util.tree_flatten(body.inputs)
            types = [_type(leaf) for leaf in leaves]
            for operand in operands:
                types[operand] = jax.ShapeDtypeStruct(types[operand].shape, to)
            run = lambda *given, f=body.function: SplitTree(f(*given)).arrays
            found.append(_shapes(run, tree.unflatten(types)))

    outcome = _tried(trace)
    of_places = [[str(types[place].dtype) for place in places] for types in found]
    return outcome and all(types == of_places[0] for types in of_places)


def _operand(body: Body, place: int) -> int | None:
    """The operand that a branch returns as it is, by its place; None if it is none."""
    if not body.jaxprs:
        return None
    jaxpr = open_jaxpr(body.jaxprs[0])
    count = len(tree_util.tree_leaves(body.inputs))
    operands = jaxpr.invars[len(jaxpr.invars) - count :]
    result = jaxpr.outvars[place]
    return next((n for n, operand in enumerate(operands) if operand is result), None)


def accepts(frame: FrameType | None, change: Callable[[Leaf], Leaf]) -> Outcome:
    """Whether a function that is running takes its arguments once they are changed."""
    function, args, kwargs = _call_of(frame) if frame else (None, (), {})
    if frame is None or function is None or objects([args, kwargs]):
        return None
    leaves, tree = tree_util.tree_flatten((args, kwargs))
    changed = [change(leaf) for leaf in leaves]
    if not any(x is not y for x, y in zip(leaves, changed)):
        return None
    is_abstract = lambda x: isinstance(x, (jax.Array, Tracer, jax.ShapeDtypeStruct))

    def run(arrays: Sequence[Leaf]) -> None:
        left = iter(arrays)
        given = [next(left) if is_abstract(x) else x for x in changed]
        args, kwargs = tree.unflatten(given)
        function(*args, **kwargs)

    return _tried(lambda: jax.eval_shape(run, [*filter(is_abstract, map(_shape, changed))]))


def _call_of(frame: FrameType) -> tuple[Function | None, Sequence[PyTree], Kwargs]:
    """The function of a frame and its arguments; None for one that cannot be called."""
    code, values = frame.f_code, variables_of(frame)
    if callable(values.get("fun")) and {"args", "kwargs"} <= {*values}:  # of a wrapper
        return values["fun"], values["args"], values["kwargs"]
    names = code.co_varnames
    count = code.co_argcount + code.co_kwonlyargcount
    if code.co_freevars or any(name not in values for name in names[:count]):
        return None, (), {}
    args = [values[name] for name in names[: code.co_argcount]]
    kwargs = {name: values[name] for name in names[code.co_argcount : count]}
    if code.co_flags & inspect.CO_VARARGS:
        args += values.get(names[count], ())
        count += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs |= values.get(names[count], {})
    return FunctionType(code, frame.f_globals), args, kwargs


def cast_to(leaf: Leaf, dtype: DType) -> Leaf:
    """A leaf in another dtype; what is traced stands for its type."""
    if dtype == float0:
        return np.zeros(np.shape(leaf), float0)
    if isinstance(leaf, np.dtype):
        return np.dtype(dtype)
    if not is_array(leaf):
        kinds = {"i": int, "u": int, "b": bool, "c": complex}
        return kinds.get(np.dtype(dtype).kind, float)(leaf)
    if isinstance(leaf, np.ndarray):
        return leaf.astype(dtype)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype)


def _shapes(run: Function, given: PyTree) -> list[Aval]:
    """The types that a function returns for some, its constants left as they are."""
    parts = SplitTree(given)
    of_arrays = lambda arrays: run(*parts.merged(arrays))
    return jax.eval_shape(of_arrays, [*map(_type, parts.arrays)])


def _shape(leaf: Leaf) -> Leaf:
    return _type(leaf) if isinstance(leaf, (jax.Array, Tracer)) else leaf


def _type(leaf: Leaf) -> jax.ShapeDtypeStruct:
    """The type of an array or a number, weak if it is."""
    dtype = dtype_of(leaf)
    dtype = leaf.dtype if kind(dtype) is None else jax.dtypes.canonicalize_dtype(dtype)
    with contextlib.suppress(TypeError):  # older releases have no weak ones
        return jax.ShapeDtypeStruct(np.shape(leaf), dtype, weak_type=is_weak(leaf))
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype)


def _tried(trace: Callable[[], object]) -> Outcome:
    """What a trace means: what fails for another reason than types tells nothing."""
    try:
        silent = contextlib.redirect_stdout(io.StringIO())
        with RECORD.unseen(), silent, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has printed and warned before
            trace()
    except Exception as error:
        text = str(error)
        is_of_types = isinstance(error, (TypeError, ValueError, AssertionError))
        needs_values = isinstance(
            error, (jax.errors.JAXTypeError, jax.errors.JAXIndexError)
        )
        is_known = is_of_types and not needs_values and "Tracer" not in text
        return False if is_known and _NAMES_A_TYPE.search(text) else None
    return True


_NAMES_A_TYPE = re.compile(
    r"\b(?:bool|(?:u?int|b?float|complex|bf|f|i|u|c)\d+|dtype|integer)\b"
)
