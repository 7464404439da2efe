"""Runs a program on some inputs: as written, in other dtypes, in float64."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.compat import set_x64
from .._leaves.dtypes import kind
from .._leaves.types import Jaxpr, Leaf
from .._numbers import plans
from .._numbers.formats import Formats, has_few_digits
from .._numbers.primitives import is_inexact
from .._numbers.program import NumericProgram
from .._numbers.python_numbers import PythonNumbers
from .._numbers.run import run
from .._numbers.sketches import SketchNode, sketches

_WIDE = Formats(np.dtype("float64"))
# One in eight moves up, and as many down: the variance is that of half a unit.
_STEPS = np.array([-1.0, 0, 0, 0, 0, 0, 0, 1])


class RunCall(NamedTuple):
    """A traced function, and what it is called with.

    Attributes:
        program: a closed jaxpr.
        numbers: the Python numbers that were given to JAX when it was traced.
        arrays: its inputs.
        in_float32: the same function of the same inputs, those narrower than float32 in
            float32: its constants have the digits that they have there. None if there
            are no such inputs, or it does not trace so.
    """

    program: Jaxpr
    numbers: PythonNumbers
    arrays: Sequence[Leaf]
    in_float32: "RunCall | None" = None


# The outputs for some inputs, or for those of the call.
Run = Callable[..., list[np.ndarray]]


def run_of(call: RunCall, formats: Formats | None = None) -> Run:
    """What runs a program: in some dtypes, or all of it in float64."""
    is_on: bool = formats is None or jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]: of JAX
    program = NumericProgram(call.program, formats or _WIDE, call.numbers)
    plan = (plans.wide if formats is None else plans.written)(program)

    def made_of(arrays: Sequence[Leaf] = call.arrays) -> list[np.ndarray]:
        pairs = zip(arrays, call.arrays)
        with set_x64(is_on):
            given = [jnp.asarray(x, y.dtype) for x, y in pairs]
            return [*map(numeric, run(program, plan, given))]

    return made_of


def sketched(call: RunCall) -> tuple[list[SketchNode], list[int | None]]:
    """The values of a program in float64 as sketches, and the numbers of its outputs."""
    with set_x64(True):
        return sketches(NumericProgram(call.program, _WIDE, call.numbers), call.arrays)


def moved(arrays: Sequence[Leaf], eps: float, seed: int) -> list[Leaf]:
    """Inputs some of whose numbers are a unit in the last place larger or smaller."""
    random = np.random.default_rng(seed)

    def one(x: Leaf) -> Leaf:
        if not is_inexact(x):
            return x
        dtype = np.complex128 if kind(x.dtype) == "complex" else np.float64
        flat = np.asarray(x).astype(dtype).ravel().view(np.float64)
        most = float(jnp.finfo(x.dtype).max)
        stays = has_few_digits(flat) | (flat == np.round(flat))
        with np.errstate(over="ignore"):
            steps = np.clip(flat * eps * random.choice(_STEPS, flat.shape), -most, most)
            other = np.where(stays, flat, np.clip(flat + steps, -most, most))
        return other.view(dtype).reshape(x.shape).astype(x.dtype)

    return [*map(one, arrays)]


def numeric(array: Leaf) -> np.ndarray:
    """An array in float64; complex numbers have an axis more. Empty for random keys."""
    dtype = getattr(array, "dtype", None)
    if kind(dtype) is None:
        return np.zeros(0)
    array = np.asarray(array)
    if kind(dtype) == "complex":
        array = np.stack([array.real, array.imag], -1)
    return array.astype(np.float64)
