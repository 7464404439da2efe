"""Runs an inner optimizer as if `jax_enable_x64` were off, and adapts its extra args."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from ._compat import HAS_X64_SCOPE, set_x64, x64_enabled
from ._dtypes import is_wide, narrow
from ._errors import DtypeDriftError


def without_x64(call: Callable[..., Any], *inputs: Any) -> Any:
    """`call(*inputs)`, traced as if x64 were off when no input is 64-bit.

    A call that works under x64 alone, say one that uses `jax.lax` on a 64-bit constant of
    its own, raises a `TypeError` then; it gets the flag that it would have had bare.

    Args:
        call: a function of `inputs`.
        *inputs: pytrees. Python scalars among them count as 32-bit: they are weakly
            typed and follow their surroundings.
    """
    blind = HAS_X64_SCOPE and x64_enabled()
    if blind and not any(map(is_wide, jax.tree_util.tree_leaves(inputs))):
        try:
            with set_x64(False):
                return call(*inputs)
        except DtypeDriftError:
            raise
        except TypeError:
            pass
    return call(*inputs)


def narrow_extra_args(extra_args: dict[str, Any]) -> dict[str, Any]:
    """Extra args as they would be with x64 off; callables keep the flag they were given."""
    return convert_extra_args(extra_args, narrow, x64=True)


def convert_extra_args(
    extra_args: dict[str, Any],
    convert: Callable[[Any], Any],
    *,
    x64: bool | None = None,
) -> dict[str, Any]:
    """Applies `convert` to every leaf of the extra args and to what callables return.

    A callable is what optax calls one: an argument named `*_fn`, or a callable leaf. A
    model that happens to be callable is a pytree of data.

    Args:
        extra_args: the keyword arguments of an `update`.
        convert: maps a leaf to a leaf.
        x64: the flag under which callables run; None leaves it alone.
    """

    def converting(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args, **kwargs):
            if x64 is None:
                return jax.tree_util.tree_map(convert, function(*args, **kwargs))
            with set_x64(x64):
                return jax.tree_util.tree_map(convert, function(*args, **kwargs))

        return call

    def adapted(name: str, value: Any) -> Any:
        is_leaf = jax.tree_util.all_leaves([value])
        if callable(value) and (is_leaf or name.endswith("_fn")):
            return converting(value)
        return jax.tree_util.tree_map(convert, value)

    return {name: adapted(name, value) for name, value in extra_args.items()}
