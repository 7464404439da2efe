"""Binds equations under the current trace, and holds their values meanwhile."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend import source_info_util

from .._leaves.types import Equation, Jaxpr, Leaf
from .products import fan_out
from .values import Value, dtype_of, is_float, is_narrower


class Values:
    """The values of a jaxpr, each as long as something uses it.

    The uses of a narrow value have cotangents of their own, which are added up wide.
    """

    def __init__(self, jaxpr: Jaxpr):
        used = [var for eqn in jaxpr.eqns for var in eqn.invars]
        every = (*used, *jaxpr.outvars)
        self._left = Counter(var for var in every if not hasattr(var, "val"))
        self._known: dict[Any, Value] = {}
        self._copies: dict[Any, Iterator[Leaf]] = {}

    def put(self, var: Any, value: Value) -> None:
        count = self._left[var]
        if not count:
            return
        self._known[var] = value
        written, dtype = var.aval, dtype_of(value.array)
        if count > 1 and is_float(written) and is_narrower(dtype, written.dtype):
            self._copies[var] = iter(fan_out(value.array, count))

    def get(self, var: Any) -> Value:
        value = self._known[var]
        if var in self._copies:
            value = value._replace(array=next(self._copies[var]))
        self._left[var] -= 1
        if not self._left[var]:
            del self._known[var]
            self._copies.pop(var, None)
        return value


def bind(eqn: Equation, operands: Sequence[Leaf], params: dict[str, Any]) -> list[Leaf]:
    """The results of an equation with these parameters."""
    bound = eqn.primitive.get_bind_params(params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    made = eqn.primitive.bind(*functions, *operands, **params)
    return [*made] if eqn.primitive.multiple_results else [made]


@contextlib.contextmanager
def in_context(eqn: Equation) -> Iterator[None]:
    """The line, the scopes, the mesh and what else an equation was traced with."""
    info = eqn.source_info
    names = source_info_util.current_name_stack() + info.name_stack
    with source_info_util.user_context(info.traceback, name_stack=names), eqn.ctx.manager:
        yield
