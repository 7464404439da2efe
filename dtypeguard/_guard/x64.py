"""Runs optimizers and steps as if `jax_enable_x64` were off, where no input is 64-bit."""

from collections.abc import Callable, Iterable

import jax

from .._leaves.compat import HAS_X64_SCOPE, set_x64, x64_enabled
from .._leaves.dtypes import is_weak, is_wide
from .._leaves.errors import DtypeDriftError, first_line, more
from .._leaves.rows import by_path, describe
from .._leaves.types import Function, PyTree
from .._source.warn import Attempts


def without_x64(call: Function, warn: Callable[[str], None], *inputs: PyTree) -> PyTree:
    """Calls `call(*inputs)`, with x64 off if no input is 64-bit.

    Some calls work only with x64 on, such as a counter beyond 2**31 or the derivative of a
    loss on float64 data. If the first attempt raises, a second one runs under the caller's
    flag.
    """
    blind = HAS_X64_SCOPE and x64_enabled()
    if not blind or any(map(is_wide, jax.tree_util.tree_leaves(inputs))):
        return call(*inputs)
    with Attempts() as attempts:
        try:
            with set_x64(False):
                return call(*inputs)
        except DtypeDriftError:
            raise
        except Exception as error:
            reason = first_line(error)
        attempts.again()
        outputs = call(*inputs)
        warn(
            f"the optimizer runs with x64 on, since it failed with x64 off: {reason}"
            + more("guard-an-optimizer")
        )
        return outputs


def wide_input(named: Iterable[tuple[str, PyTree]]) -> str:
    """The name and type of the first 64-bit array of some trees; "" if there is none.

    A Python number that an outer `jit` traced is weakly typed and does not count.
    """
    for name, tree in named:
        for path, leaf in by_path(tree).items():
            if is_wide(leaf) and not is_weak(leaf):
                return f"{name}{path} ({describe(leaf)})"
    return ""
