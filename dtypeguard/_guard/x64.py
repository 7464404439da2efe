"""Runs optimizers and steps as if `jax_enable_x64` were off, where no input is 64-bit."""

from collections.abc import Callable, Iterable

import jax

from .._leaves.compat import HAS_X64_SCOPE, set_x64, x64_enabled
from .._leaves.dtypes import is_weak, is_wide
from .._leaves.errors import DtypeDriftError, more
from .._leaves.rows import by_path, describe
from .._leaves.types import Function, PyTree


def without_x64(call: Function, warn: Callable[[str], None], *inputs: PyTree) -> PyTree:
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


def wide_input(named: Iterable[tuple[str, PyTree]]) -> str:
    """The first 64-bit array of some trees, by name and type; "" if there is none.

    A Python number that an outer `jit` has traced is weakly typed, and does not count.
    """
    for name, tree in named:
        for path, leaf in by_path(tree).items():
            if is_wide(leaf) and not is_weak(leaf):
                return f"{name}{path} ({describe(leaf)})"
    return ""
