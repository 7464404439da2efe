"""Loops, branches and shards of a paired program."""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from .._leaves.types import Equation, Jaxpr, Leaf
from .._program.graph import loop_parts, open_jaxpr
from .finite import Finite
from .primitives import is_inexact
from .values import Value


class ControlFlow:
    """Runs the equations that hold programs whose values are pairs."""

    _finite: Finite | None
    _rounds: list[Leaf]

    def _run(
        self, jaxpr: Jaxpr, given: Sequence[Value], outer: Sequence[Equation]
    ) -> list[Value]:
        """Runs a jaxpr, closed or open, that stands inside some equations."""
        raise NotImplementedError

    def _as_written(self, eqn: Equation, values: Sequence[Value]) -> list[Value]:
        """The results of an equation without a wide form, on the inputs of either side."""
        raise NotImplementedError

    def _scan(self, eqn: Equation, values: list[Value], stack: Sequence[Equation]):
        body, _, consts, count = loop_parts(eqn)
        outside, carry, xs = split(values, consts, count)

        def step(carry, xs):
            xs = [v._replace(cause=cause) for v, cause in zip(xs, causes)]
            made = self._run(body, [*outside, *carry, *xs], stack)
            return made[:count], made[count:]

        params = eqn.params
        options = {"reverse": params["reverse"], "unroll": params.get("unroll", 1)}
        causes = [v.cause for v in xs]
        xs = [v._replace(cause=None) for v in xs]
        carry, ys = lax.scan(step, carry, xs, params["length"], **options)
        if self._finite is not None:
            ys = [v if v.cause is None else v._replace(cause=v.cause.max(0)) for v in ys]
        return [*carry, *ys]

    def _while(self, eqn: Equation, values: list[Value], stack: Sequence[Equation]):
        body, of_condition, consts, _ = loop_parts(eqn)
        condition = eqn.params["cond_jaxpr"]
        before, outside, carry = split(values, of_condition, consts)

        def goes_on(carry):
            return self._run(condition, [*before, *carry], stack)[0].narrow

        def step(carry):
            made = self._run(body, [*outside, *carry], stack)
            is_on = goes_on(carry) if axes else jnp.bool_(True)

            def chosen(new, old):  # under vmap, each element goes on by itself
                shape = is_on.shape + (1,) * (new.ndim - axes)
                return jnp.where(is_on.reshape(shape), new, old)

            def of_value(new, old):
                wide = None if new.wide is None else chosen(new.wide, old.wide)
                return Value(chosen(new.narrow, old.narrow), wide, new.cause)

            return [*map(of_value, made, carry)] if axes else made

        axes = len(open_jaxpr(condition).outvars[0].aval.shape)
        return lax.while_loop(lambda carry: jnp.any(goes_on(carry)), step, carry)

    def _cond(self, eqn: Equation, values: list[Value], stack: Sequence[Equation]):
        index, *operands = values
        branches = [
            lambda operands, branch=branch: self._run(branch, operands, stack)
            for branch in eqn.params["branches"]
        ]
        return lax.switch(index.narrow, branches, operands)

    def _shard_map(self, eqn: Equation, values: list[Value], stack: Sequence[Equation]):
        params = eqn.params
        if "in_specs" not in params or not hasattr(jax, "shard_map"):  # before JAX 0.7
            return self._as_written(eqn, values)
        axes = params.get("newly_manual_axes", params.get("manual_axes"))
        everywhere = jax.sharding.PartitionSpec()

        def specs(avals, specs):
            cause = None if self._finite is None else everywhere
            pairs = zip(map(is_inexact, avals), specs)
            return [Value(s, s, cause) if has else Value(s) for has, s in pairs]

        def body(rounds, values):
            outer, self._rounds = self._rounds, rounds
            try:
                made = self._run(params["jaxpr"], values, stack)
            finally:
                self._rounds = outer
            if self._finite is None:
                return made
            worst = lambda x: None if x is None else lax.pmax(x, tuple(axes))
            return [v._replace(cause=worst(v.cause)) for v in made]

        out_avals = [var.aval for var in eqn.outvars]
        return jax.shard_map(
            body,
            mesh=params["mesh"],
            in_specs=(everywhere, specs([v.narrow for v in values], params["in_specs"])),
            out_specs=specs(out_avals, params["out_specs"]),
            axis_names=set(axes),
            check_vma=params["check_vma"],
        )(self._rounds, values)


def split(values: list[Value], *sizes: int) -> Iterator[list[Value]]:
    """Lists of these sizes, and one of the rest."""
    for size in sizes:
        yield values[:size]
        values = values[size:]
    yield values
