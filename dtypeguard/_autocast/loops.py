"""Emits loops and the bodies of shards."""

from typing import Any

import jax

from .._leaves.types import Equation
from .._program.graph import Stack, loop_parts, manual_axes, open_jaxpr
from .entries import FLOW
from .inside import Inner, Inside, evaluated, leading, like, types_of, widest
from .matching import key_of_line
from .reach import Variables
from .values import Value, cast, dtype_of, is_float, is_narrower, most_lost

# How often a loop is traced until what it carries has settled.
_ATTEMPTS = 4


class InsideLoops(Inside):
    """Emits all equations but functions with derivatives of their own."""

    def scan(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        own, _, consts, carried = loop_parts(eqn)
        # The cotangent of what the turns share is added up in its dtype.
        outside = [_widened(v, var) for v, var in zip(values[:consts], eqn.invars)]
        values = [*outside, *values[consts:]]
        inner, values = self._body(eqn, stack, values, reached, consts, carried)
        return self.bound(eqn, values, [inner], {"jaxpr": like(own, inner.jaxpr)})

    def loop(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        own, before, consts, carried = loop_parts(eqn)
        first = values[:before]
        inner, rest = self._body(eqn, stack, values[before:], reached, consts, carried)
        condition = eqn.params["cond_jaxpr"]
        types = types_of([*first, *rest[consts:]])
        goes_on = self.inner(condition, stack, types, [False])
        params = {
            "body_jaxpr": like(own, inner.jaxpr),
            "cond_jaxpr": like(condition, goes_on.jaxpr),
        }
        return self.bound(eqn, [*first, *rest], [inner, goes_on], params)

    def _body(
        self,
        eqn: Equation,
        stack: Stack,
        values: list[Value],
        reached: Variables,
        consts: int,
        carried: int,
    ) -> tuple[Inner, list[Value]]:
        """The body of a loop that takes what it gives, and its operands."""
        body, last = loop_parts(eqn).body, consts + carried
        leads = leading(eqn, reached)
        leads = self.reach.turned(eqn, stack, leads) if self.plan.default == FLOW else leads
        variables = open_jaxpr(body).invars[consts:last]
        narrows = self.reached(body, stack, leads)
        carry = [
            value._replace(array=cast(value.array, dtype)) if dtype else value
            for value, var in zip(values[consts:last], variables)
            for dtype in [self.settled(value, var, narrows)]
        ]
        inside = lambda results: self.inner(
            body,
            stack,
            types_of([*values[:consts], *carry, *values[last:]]),
            leads,
            results,
        )
        for attempt in range(_ATTEMPTS):
            inner = inside(None)
            pairs = [*zip(types_of(carry), inner.types)]
            losses = [*map(most_lost, pairs)]
            is_same = all(before.dtype == after.dtype for before, after in pairs)
            if is_same and losses == [value.lost for value in carry]:
                break
            # At last the wider of both, in which each is exact.
            dtypes = [
                after.dtype if attempt < _ATTEMPTS - 2 else widest([before, after])
                for before, after in pairs
            ]
            carry = [
                value._replace(array=cast(value.array, dtype), lost=lost)
                if is_float(value.array)
                else value
                for value, dtype, lost in zip(carry, dtypes, losses)
            ]
        else:
            fixed = [dtype_of(value.array) for value in carry]
            ends = [None] * (len(eqn.outvars) - carried)
            inner = inside([*fixed, *ends])
        return inner, [*values[:consts], *carry, *values[last:]]

    def shards(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        params, types = eqn.params, types_of(values)
        own, leads = params["jaxpr"], leading(eqn, reached)

        def trace(body):
            mapped = jax.shard_map(
                body,
                mesh=params["mesh"],
                in_specs=([*params["in_specs"]],),
                out_specs=[*params["out_specs"]],
                axis_names={*manual_axes(eqn)},
                check_vma=params["check_vma"],
            )
            return jax.make_jaxpr(mapped)([jax.typeof(v.array) for v in values])

        key = id(open_jaxpr(own)), (*types,), (*leads,), key_of_line(stack)
        inner = self.once(key, lambda: self.emitted(own, stack, types, leads, None, trace))
        if not inner.is_changed:
            return self.bound(eqn, values, [inner], {})
        made = evaluated(inner.jaxpr, [value.array for value in values])
        return [Value(x, *kind[1:]) for x, kind in zip(made, inner.types)]


def _widened(value: Value, var: Any) -> Value:
    """A value that is not narrower than in the program."""
    if not is_float(var.aval) or not is_narrower(dtype_of(value.array), var.aval.dtype):
        return value
    return value._replace(array=cast(value.array, var.aval.dtype))


InsideLoops.rules = {
    **Inside.rules,
    "scan": InsideLoops.scan,
    "while": InsideLoops.loop,
    "shard_map": InsideLoops.shards,
}
