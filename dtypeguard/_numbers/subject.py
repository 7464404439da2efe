"""What an audit of precision is given: a function and its arguments, checked and traced."""

import contextlib
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._carry.modules import gathered, is_in_place, spread
from .._carry.split import SplitTree
from .._carry.tracing import make_jaxpr_with_aux
from .._leaves.arguments import check_arrays, checked_names, shown
from .._leaves.compat import check_release, has_float64, set_x64, traced_anew
from .._leaves.dtypes import kind
from .._leaves.key_path import path_text
from .._leaves.types import Args, Aval, DType, Function, Jaxpr, Leaf, PyTree
from .._program.aligned import (
    WIDER,
    SecondTraces,
    beside_trace,
    sibling_dtypes,
)
from .._program.program import Block
from .formats import Formats
from .primitives import is_inexact, measured

_NOT_TRACED = (
    "audit_precision got this error while it traced the function, as jax.make_jaxpr does. "
    "Arrays have no values there. Where it asks for one, write jax.lax.cond or jnp.where "
    "for a branch; give a number that decides what is traced as a Python int, and keep a "
    "float of that kind in functools.partial. A Flax NNX module that it changes has to be "
    "an argument."
)
# The result of a function, beside its arguments.
_RESULT = jax.tree_util.SequenceKey(0)


class Traced(NamedTuple):
    """A traced function.

    Attributes:
        program: its jaxpr.
        avals: the abstract values of it and of all inside it.
        paths: of its floating outputs; if there are none, of ints and bools that floats
            may decide.
        traces: it beside its traces of other arguments, as far as they are asked for.
        has_float64: whether JAX makes a float64 array for the caller who names that dtype.
        outputs: the paths of all its outputs.
    """

    program: Jaxpr
    avals: list[Aval]
    paths: list[str]
    traces: SecondTraces
    has_float64: bool
    outputs: list[str]


class Subject:
    """A function and its arguments.

    Attributes:
        f: the function.
        call: what is called, with the NNX object that `f` is of among its arguments.
        given: its arguments, with the arrays apart.
        has_values: whether all arrays have values, so that it can run.

    Raises:
        TypeError: if one of them has the wrong type.
        NotImplementedError: before JAX 0.8.
    """

    def __init__(
        self, f: Function, args: Args, kwargs: Mapping[str, PyTree] | None, x64: bool | None
    ):
        check_release("audit_precision")
        if not callable(f):
            raise TypeError(
                f"audit_precision got {shown(f)}. Write audit_precision(f, *args), with a "
                "function of arrays."
            )
        checked_names("audit_precision", "kwargs", kwargs)
        self.f = f
        self.call, self._owner = with_owner(f, ())
        self._x64 = x64
        self.given = self.other(args, kwargs or {})
        arrays = list(self.given.arrays)
        check_arrays("audit_precision", "args", arrays)
        self.has_values = True
        for leaf in arrays:
            # Under a trace there are no values to run with.
            if isinstance(leaf, Tracer):
                raise TypeError(
                    "audit_precision needs values and got tracers: call it outside of "
                    "jax.jit, jax.grad and other transformations, with the transformed "
                    "function."
                )
            self.has_values &= not isinstance(leaf, jax.ShapeDtypeStruct)

    def other(self, args: Args, kwargs: Mapping[str, PyTree]) -> SplitTree:
        """Returns arguments by position and by name, with the arrays apart."""
        tree = spread(((*self._owner, *args), dict(kwargs)))
        return SplitTree(tree, static=(bool, int))

    def check_values(self, option: str, what: str) -> None:
        """Raises a TypeError if an option needs values, and there are none."""
        if not self.has_values:
            raise TypeError(
                f"audit_precision got {option} and a jax.ShapeDtypeStruct, which has no "
                f"values to {what}. Give it arrays."
            )

    def traced(self, f: Function | None = None, is_planned: bool = False) -> Traced:
        """Returns the trace of the function.

        Args:
            f: another function to trace in its place.
            is_planned: whether it is traced as `autocast` traces it as well.
        """
        run = functools.partial(self._run, f or self.call)
        # What JAX has traced before has the lines of another call.
        with set_x64(self._x64), traced_anew():
            try:
                program, outputs = make_jaxpr_with_aux(run, *self.given.arrays)
            except Exception as error:
                # The error itself stays: the user's line is in its traceback.
                error.add_note(_NOT_TRACED)
                raise
            # As the caller has it: the audit itself may turn x64 on later.
            has_double = has_float64()
            wide = beside_trace(program, run, WIDER)
            sibling = wide
            # What follows the arguments shows where these have dtypes that no argument has.
            if is_planned:
                sibling = beside_trace(program, run, sibling_dtypes(program))
        avals = _avals_in(program)
        # Of integers alone nothing rounds.
        paths = []
        if any(map(is_inexact, avals)):
            places = measured(program.out_avals)
            paths = [outputs[place] for place in places]
        traces = SecondTraces(wide, lambda: sibling)
        return Traced(program, avals, paths, traces, has_double, outputs)

    def _run(self, f: Function, *arrays: Leaf) -> tuple[list[Leaf], list[str]]:
        """Returns the arrays that a function returns of arrays, and their paths.

        What the function changes in place in its arguments is an output as well.
        """
        arguments = self.given.merged(arrays)
        args, kwargs = gathered(arguments)
        # What is traced in the place of the function has no use for its object.
        if f is not self.call:
            args = args[len(self._owner) :]
        # The arguments come beside the result: a module may have been changed in place.
        result = f(*args, **kwargs)
        tree = spread((result, args, kwargs))
        returned = SplitTree(tree)
        outputs = []
        paths = []
        for path, leaf in zip(returned.key_paths, returned.arrays):
            if path[0] == _RESULT:
                path = path[1:]
            # A Python number of an argument is no array that a function could change.
            elif isinstance(leaf, (bool, int)) or any(leaf is array for array in arrays):
                continue
            outputs.append(leaf)
            paths.append(path_text(path))
        return outputs, paths


def with_owner(function: Function, args: Args) -> tuple[Function, Args]:
    """Returns a function with the NNX object that it is of among its arguments.

    It may change the object, and is traced with a copy of it.
    """
    owner = getattr(function, "__self__", None)
    if inspect.ismethod(function) and is_in_place(owner):
        return function.__func__, (owner, *args)
    # A module that is called may change itself.
    if is_in_place(function):
        return type(function).__call__, (function, *args)
    return function, args


def formats_of(avals: Sequence[Aval], wide: DType, narrow: DType) -> Formats:
    """Returns the dtypes of an audit of a program with these values.

    Raises:
        TypeError: if one is not a floating dtype.
        ValueError: if the narrow one is not narrower.
    """
    target = _floating("wide", wide, "float32")
    narrower = _floating("narrow", narrow, "bfloat16")
    if target is None:
        sizes = []
        for aval in avals:
            if is_inexact(aval):
                sizes.append(aval.dtype.itemsize)
        if narrower is not None:
            sizes.append(narrower.itemsize)
        # float32 is exact enough for 16 bits, and float64 takes twice as long.
        target = np.dtype("float64")
        if min(sizes, default=8) < 4:
            target = np.dtype("float32")
    # What it is compared with must not round as well.
    if target.itemsize < 4:
        raise ValueError(
            f"audit_precision got wide={target}, which rounds. Write wide=jnp.float32 or "
            "wide=jnp.float64."
        )
    if narrower is not None and narrower.itemsize >= target.itemsize:
        raise ValueError(
            f"audit_precision got narrow={narrower}, which is not narrower than {target}, "
            "with which it compares. Write a narrower one, such as narrow=jnp.bfloat16."
        )
    return Formats(target, narrower)


def _floating(name: str, dtype: DType, example: str) -> np.dtype | None:
    if dtype is None:
        return None
    with contextlib.suppress(TypeError):
        floating = jnp.dtype(dtype)
        if kind(floating) == "float":
            return floating
    raise TypeError(
        f"audit_precision got {name}={shown(dtype)}. Write a floating dtype, such "
        f"as {name}=jnp.{example}."
    )


def _avals_in(program: Jaxpr) -> list[Aval]:
    """Returns the abstract values of a program, and of all inside it."""
    block = Block(program)
    variables = [*block.arguments, *block.consts]
    for node in block.all_nodes():
        variables.extend(node.eqn.outvars)
    return [var.aval for var in variables]
