"""Loops, branches and shards of a paired program."""

import functools
from collections.abc import Iterator, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from .._leaves.types import Equation, Jaxpr, Leaf
from .._program.graph import Stack, loop_parts, manual_axes, open_jaxpr
from .finite import Finite, Inside, any_across, any_along
from .primitives import is_inexact
from .values import Value

_T = TypeVar("_T")


class PairedControlFlow:
    """Runs the equations that hold programs whose values are pairs."""

    _finite: Finite | None
    _rounds: list[list[Leaf]]

    def _run(self, jaxpr: Jaxpr, given: Sequence[Value], outer: Stack) -> list[Value]:
        """Runs a jaxpr, closed or open, that stands inside some equations."""
        raise NotImplementedError

    def _as_written(self, eqn: Equation, values: Sequence[Value]) -> list[Value]:
        """The results of an equation without a wide form, on the inputs of either side."""
        raise NotImplementedError

    def _scan(self, eqn: Equation, values: list[Value], stack: Stack):
        body, _, consts, count = loop_parts(eqn)
        outside, start, all_xs = split(values, consts, count)
        inside = Inside(self._finite, values)
        run = lambda given: self._run(body, [*outside, *given], stack)

        def step(carry, xs):
            made, flags = inside.run(run, [*carry, *xs], [*start, *all_xs])
            return made[:count], (made[count:], flags)

        params = eqn.params
        options = {"reverse": params["reverse"], "unroll": params.get("unroll", 1)}
        carry, (ys, flags) = lax.scan(step, start, all_xs, params["length"], **options)
        return inside.leave(any_along(flags), [*carry, *ys], start)

    def _while(self, eqn: Equation, values: list[Value], stack: Stack):
        body, of_condition, consts, _ = loop_parts(eqn)
        condition = eqn.params["cond_jaxpr"]
        before, outside, start = split(values, of_condition, consts)
        inside = Inside(self._finite, values)
        run = lambda given: self._run(body, [*outside, *given], stack)

        def goes_on(carry):
            finite, self._finite = self._finite, None  # it decides, and returns no floats
            try:
                return self._run(condition, [*before, *carry], stack)[0].narrow
            finally:
                self._finite = finite

        def step(carry):
            carry, flags = carry
            made, new_flags = inside.run(run, carry, start)
            if new_flags is not None:
                flags |= inside.fitted(new_flags)
            is_on = goes_on(carry) if axes else jnp.bool_(True)

            def chosen(new, old):  # under vmap, each element goes on by itself
                shape = is_on.shape + (1,) * (new.ndim - axes)
                return jnp.where(is_on.reshape(shape), new, old)

            made = jax.tree_util.tree_map(chosen, made, carry) if axes else made
            return made, flags

        axes = len(open_jaxpr(condition).outvars[0].aval.shape)
        is_on = lambda carry: jnp.any(goes_on(carry[0]))
        made, flags = lax.while_loop(is_on, step, (start, inside.none))
        return inside.leave(flags, made, start)

    def _cond(self, eqn: Equation, values: list[Value], stack: Stack):
        index, *operands = values
        insides = [Inside(self._finite, values) for _ in eqn.params["branches"]]

        def branch(number: int, jaxpr: Jaxpr, given: list[Value]):
            run = lambda given: self._run(jaxpr, given, stack)
            made, flags = insides[number].run(run, given, operands)
            all_flags = [each.none for each in insides]
            if flags is not None:
                all_flags[number] = insides[number].fitted(flags)
            return made, all_flags

        jaxprs = enumerate(eqn.params["branches"])
        branches = [functools.partial(branch, *each) for each in jaxprs]
        made, flags = lax.switch(index.narrow, branches, operands)
        for each, own in zip(insides, flags):
            each.leave(own, made)
        return made

    def _shard_map(self, eqn: Equation, values: list[Value], stack: Stack):
        params = eqn.params
        if "in_specs" not in params or not hasattr(jax, "shard_map"):  # before JAX 0.7
            return self._as_written(eqn, values)
        axes = manual_axes(eqn)
        everywhere = jax.sharding.PartitionSpec()
        inside = Inside(self._finite, values)
        run = lambda given: self._run(params["jaxpr"], given, stack)

        def specs(avals, specs):
            pairs = zip(map(is_inexact, avals), specs)
            return [Value(s, s) if has else Value(s) for has, s in pairs]

        def body(rounds, given):
            outer, self._rounds = self._rounds, rounds
            try:
                made, flags = inside.run(run, given, values)
            finally:
                self._rounds = outer
            return made, any_across(flags, axes)

        out_avals = [var.aval for var in eqn.outvars]
        made, flags = jax.shard_map(
            body,
            mesh=params["mesh"],
            in_specs=(everywhere, specs([v.narrow for v in values], params["in_specs"])),
            out_specs=(specs(out_avals, params["out_specs"]), everywhere),
            axis_names=set(axes),
            check_vma=params["check_vma"],
        )(self._rounds, values)
        return inside.leave(flags, made)


def split(values: list[_T], *sizes: int) -> Iterator[list[_T]]:
    """Lists of these sizes, and one of the rest."""
    for size in sizes:
        yield values[:size]
        values = values[size:]
    yield values
