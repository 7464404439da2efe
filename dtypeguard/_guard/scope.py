"""Runs optimizers and steps as if `jax_enable_x64` were off, on what fits that."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from .._leaves.compat import HAS_X64_SCOPE, set_x64, x64_enabled
from .._leaves.dtypes import (
    dtype_of,
    is_weak,
    is_wide,
    is_wide_scalar,
    kind,
    narrow,
    narrow_scalar,
)
from .._leaves.errors import DtypeDriftError, more
from .._leaves.rows import by_path, describe
from .carry import Carry
from .given import Given


def without_x64(call: Callable[..., Any], warn: Callable[[str], None], *inputs: Any) -> Any:
    """`call(*inputs)`, traced as if x64 were off when no input is 64-bit.

    What works under x64 alone (a counter beyond 2**31, a loss on float64 data whose
    derivative is taken) raises then; it gets the flag that it would have had bare.

    Args:
        call: a function of `inputs`.
        warn: is told when `call` only worked with x64 on.
        *inputs: pytrees. Python scalars among them count as 32-bit: they are weakly
            typed and follow their surroundings.
    """
    blind = HAS_X64_SCOPE and x64_enabled()
    if not blind or any(map(is_wide, jax.tree_util.tree_leaves(inputs))):
        return call(*inputs)
    try:
        with set_x64(False):
            return call(*inputs)
    except DtypeDriftError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
    outputs = call(*inputs)
    warn(
        f"the optimizer runs with x64 on, since it failed with x64 off: {reason}"
        + more("Guard an optimizer")
    )
    return outputs


def wide_input(
    carry: Carry, given: list[Given], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """A 64-bit array that a step is given, by name and type; "" if there is none."""
    # A Python number that a jit outside has traced is weakly typed, and no 64-bit input.
    wide = lambda leaf: is_wide(leaf) and not is_weak(leaf)
    for label, each in zip(carry.labels, given):
        for path, leaf in by_path(each.own()).items():
            if wide(leaf):
                return f"{label}{path}: {describe(leaf)}"
    others = filter(wide, jax.tree_util.tree_leaves((args, kwargs)))
    return next((f"an argument of {describe(leaf)}" for leaf in others), "")


def with_narrower_numbers(
    carry: Carry, given: list[Given], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments for each attempt with x64 off.

    A Python number that a `jit` outside has traced with x64 on has 64 bits still. A step
    that minds that gets one of 32, which promotes as an array does: so not at first.
    """
    own = lambda: tuple(each.own() for each in given)
    others = Given(carry.put(args, kwargs, (None,) * len(given)))
    yield carry.put(args, kwargs, own())
    if any(map(is_wide_scalar, others.leaves)):
        args, kwargs = others.map(narrow_scalar).own()
        yield carry.put(args, kwargs, own())


def keep_extra_args(extra_args: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Gives the extra args as they are now, each time in containers of their own."""
    is_data = {name: not _is_function(name, value) for name, value in extra_args.items()}
    given = Given({name: extra_args[name] for name in extra_args if is_data[name]})
    return lambda: extra_args | given.own()


def wide_integers(extra_args: dict[str, Any]) -> list[Any]:
    """The 64-bit integers among extra args: narrowed, they could lose their value."""
    leaves = jax.tree_util.tree_leaves(extra_args)
    return [leaf for leaf in leaves if is_wide(leaf) and kind(dtype_of(leaf)) == "int"]


def narrow_extra_args(extra_args: dict[str, Any]) -> dict[str, Any]:
    """Extra args with floats of 32 bits; callables keep the flag they were given."""
    return convert_extra_args(extra_args, narrow, x64=True)


def convert_extra_args(
    extra_args: dict[str, Any], convert: Callable[[Any], Any], *, x64: bool | None = None
) -> dict[str, Any]:
    """Applies `convert` to every leaf of the extra args and to what callables return.

    A callable is what optax calls one: an argument named `*_fn`, or a callable leaf. A
    model that happens to be callable is a pytree of data.

    Args:
        extra_args: the keyword arguments of an `update`.
        convert: maps a leaf to a leaf.
        x64: the flag under which callables run; None leaves it alone.
    """

    def converted(leaf: Any) -> Any:
        return _Converting(leaf, convert, x64) if callable(leaf) else convert(leaf)

    return {
        name: _Converting(value, convert, x64)
        if _is_function(name, value)
        else jax.tree_util.tree_map(converted, value)
        for name, value in extra_args.items()
    }


def _is_function(name: str, value: Any) -> bool:
    return callable(value) and name.endswith("_fn")


class _Converting:
    """A function with its results converted; equal to another of the same three parts.

    So that one handed to `jit` as a static argument does not make it trace again.
    """

    def __init__(self, function: Callable[..., Any], convert: Any, x64: bool | None):
        functools.update_wrapper(self, function, updated=())
        self._parts = (function, convert, x64)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function, convert, x64 = self._parts
        with contextlib.nullcontext() if x64 is None else set_x64(x64):
            return jax.tree_util.tree_map(convert, function(*args, **kwargs))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Converting) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)
