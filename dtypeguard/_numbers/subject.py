"""What an audit of precision is given: a function and its arguments, checked and traced."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._carry.modules import gathered, spread
from .._carry.split import SplitTree
from .._leaves.arguments import check_arrays, check_names, shown
from .._leaves.compat import check_release, has_float64, set_x64, traced_anew
from .._leaves.dtypes import kind
from .._leaves.types import Args, Aval, DType, Function, Jaxpr, Leaf, PyTree
from .._program.aligned import WIDER, SecondTraces, beside_trace, sibling_dtypes
from .._program.jaxprs import jaxprs_in, open_jaxpr
from .formats import Formats
from .primitives import is_inexact, measured

_NOT_TRACED = (
    "audit_precision got this error while it traced the function, as jax.make_jaxpr does."
)
_NO_VALUES = (
    " Arrays have no values there. Write jax.lax.cond or jnp.where in place of a branch on "
    "a value; give a number that decides what is traced as a Python int, and keep a float "
    "of that kind in functools.partial."
)


class Traced(NamedTuple):
    """A traced function.

    Attributes:
        program: its jaxpr.
        paths: of its floating outputs; if there are none, of ints and bools that floats
            may decide.
        traces: it beside its traces of other arguments, as far as they are asked for.
        has_float64: whether JAX makes a float64 array for the caller who names that dtype.
        outputs: the paths of all its outputs.
    """

    program: Jaxpr
    paths: list[str]
    traces: SecondTraces
    has_float64: bool
    outputs: list[str]

    @property
    def avals(self) -> Iterator[Aval]:
        """The abstract values of the program and of all inside it."""
        return avals_in(self.program)


class Subject:
    """A function and its arguments.

    Attributes:
        f: the function.
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
        check_names("audit_precision", "kwargs", {} if kwargs is None else kwargs)
        self.f, self._x64 = f, x64
        self.given = self.other(args, kwargs or {})
        check_arrays("audit_precision", "args", list(self.given.arrays))
        if any(isinstance(leaf, Tracer) for leaf in self.given.arrays):
            raise TypeError(
                "audit_precision needs values and got tracers: call it outside of jax.jit, "
                "jax.grad and other transformations, with the transformed function."
            )
        is_shape = lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)
        self.has_values = not any(map(is_shape, self.given.arrays))

    def other(self, args: Args, kwargs: Mapping[str, PyTree]) -> SplitTree:
        """Arguments by position and by name, with the arrays apart."""
        return SplitTree(spread((args, dict(kwargs))), static=(bool, int))

    def check_values(self, option: str, what: str) -> None:
        """Raises a TypeError if an option needs values, and there are none."""
        if not self.has_values:
            raise TypeError(
                f"audit_precision got {option} and a jax.ShapeDtypeStruct, which has no "
                f"values to {what}. Give it arrays."
            )

    def traced(
        self,
        f: Function | None = None,
        arrays: Sequence[Leaf] | None = None,
        is_planned: bool = False,
    ) -> Traced:
        """The function, traced, or another one, of its arguments, or of other arrays.

        For a plan, it is traced as `autocast` traces it as well.
        """
        f, outputs = f or self.f, list[str]()

        def run(*arrays):
            args, kwargs = gathered(self.given.merged(arrays))
            result = SplitTree(spread((f(*args, **kwargs), args, kwargs)))
            # What the function changes in place is an output as well.
            is_kept = lambda leaf: (
                isinstance(leaf, (bool, int)) or any(leaf is x for x in arrays)
            )
            made = [
                (path.removeprefix("[0]"), leaf)
                for path, leaf in zip(result.paths, result.arrays)
                if path.startswith("[0]") or not is_kept(leaf)
            ]
            outputs[:] = [path for path, _ in made]
            return [leaf for _, leaf in made]

        arrays = arrays or self.given.arrays
        wide = sibling = None
        with contextlib.ExitStack() as stack:
            if self._x64 is not None:
                stack.enter_context(set_x64(self._x64))
            # What JAX has traced before has the lines of another call.
            stack.enter_context(traced_anew())
            try:
                program = jax.make_jaxpr(run)(*arrays)
            except Exception as error:
                of_values = jax.errors.JAXTypeError, jax.errors.JAXIndexError
                is_of_value = isinstance(error, of_values) or "hashable" in str(error)
                error.add_note(_NOT_TRACED + (_NO_VALUES if is_of_value else ""))
                raise
            has_double = has_float64()
            paths_of_outputs = list(outputs)
            if self.has_values:
                wide = sibling = beside_trace(program, run, arrays, WIDER)
            if is_planned:
                sibling = beside_trace(program, run, arrays, sibling_dtypes(arrays))
        traces = SecondTraces(wide, sibling)
        has_floats = any(map(is_inexact, avals_in(program)))
        paths = [paths_of_outputs[n] for n in measured(program.out_avals) if has_floats]
        return Traced(program, paths, traces, has_double, paths_of_outputs)


def formats_of(avals: Sequence[Aval], wide: DType, narrow: DType) -> Formats:
    """The dtypes of an audit of a program with these values.

    Raises:
        TypeError: if one is not a floating dtype.
        ValueError: if the narrow one is not narrower.
    """
    target = _floating("wide", wide, "float32")
    narrower = _floating("narrow", narrow, "bfloat16")
    if target is None:
        dtypes = [x.dtype for x in avals if is_inexact(x)]
        dtypes += [narrower] if narrower is not None else []
        is_narrow = any(dtype.itemsize < 4 for dtype in dtypes)
        target = np.dtype("float32" if is_narrow else "float64")
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
        found = jnp.dtype(dtype)
        if kind(found) == "float":
            return found
    raise TypeError(
        f"audit_precision got {name}={shown(dtype)}. Write a floating dtype, such "
        f"as {name}=jnp.{example}."
    )


def avals_in(jaxpr: Jaxpr) -> Iterator[Aval]:
    """The abstract values of a jaxpr and of all inside it.

    A `Graph` leaves out the condition of a loop, and what a scatter applies.
    """
    jaxpr = open_jaxpr(jaxpr)
    yield from (var.aval for var in (*jaxpr.invars, *jaxpr.constvars))
    for eqn in jaxpr.eqns:
        yield from (var.aval for var in eqn.outvars)
        for inside in jaxprs_in(eqn.params):
            yield from avals_in(inside)
