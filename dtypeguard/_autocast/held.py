"""Emits what newer releases of JAX hold in objects, with `jax_remat3` and the like."""

from collections.abc import Callable

import jax
from jax import tree_util

from .._leaves.types import Equation
from .._program.expand import expanded
from .._program.graph import Stack
from .custom import Custom, with_jvp
from .inside import Inner, evaluated, leading
from .reach import Variables
from .values import Value

_OF_REMAT = "policy", "prevent_cse"
# What a rule of a derivative may have beside two functions.
_FURTHER = "remat_rules", "bwd_accums", "with_logs", "generic_batching"


class HeldRules(Custom):
    """Emits all equations."""

    def held(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        made, jaxpr = eqn.params["_prim"], expanded(eqn)
        rule = _HELD.get(type(made).__name__)
        if rule is None or jaxpr is None:
            return self.written(eqn, stack, values, reached)
        types = [value.type for value in values]
        inner = self.inner(jaxpr, stack, types, leading(eqn, reached))
        return rule(self, eqn, stack, values, inner)

    def remat(
        self, eqn: Equation, stack: Stack, values: list[Value], inner: Inner
    ) -> list[Value]:
        if not inner.is_changed:
            return self.bound(eqn, values, [inner], {})
        params = eqn.params["_prim"].params
        options = {name: params[name] for name in _OF_REMAT if name in params}
        function = jax.checkpoint(lambda *x: evaluated(inner.jaxpr, x), **options)
        return self.of_function(function, values, inner)

    def held_vjp(
        self, eqn: Equation, stack: Stack, values: list[Value], inner: Inner
    ) -> list[Value]:
        made = eqn.params["_prim"]
        if any(made.params.get(name) for name in _FURTHER):
            return self.written(eqn, stack, values, frozenset())
        # What the function closes over has no cotangents.
        is_closed = hasattr(made, "bwd_accums")

        def run(*arrays):
            args = tree_util.tree_unflatten(made.in_tree, arrays)
            nonzeros = tree_util.tree_unflatten(made.in_tree, [True] * len(arrays))
            if is_closed:
                nothing = tree_util.tree_map(lambda _: False, nonzeros[:2])
                nonzeros = *nothing, *nonzeros[2:]
            results, kept, *_ = made.vjp_fwd(nonzeros, *args)
            return tree_util.tree_leaves(results), kept

        def back(kept, cotangents):
            given = tree_util.tree_unflatten(made.out_tree, cotangents)
            if is_closed:
                others = tree_util.tree_map(lambda _: None, made.in_avals[:2])
                moved = *others, *made.bwd(kept, given)[0]
            else:
                moved = made.vjp_bwd_retval(kept, given)
            return made.in_tree.flatten_up_to(moved)

        return self.with_vjp(eqn, stack, values, inner, run, back)

    def held_jvp(
        self, eqn: Equation, stack: Stack, values: list[Value], inner: Inner
    ) -> list[Value]:
        made = eqn.params["_prim"]
        if not inner.is_changed:
            return self.bound(eqn, values, [inner], {})

        class Derivative:
            @staticmethod
            def call_wrapped(*arrays):
                half = len(arrays) // 2
                of = lambda x: tree_util.tree_unflatten(made.in_tree, x)
                results, moved = made.jvp(of(arrays[:half]), of(arrays[half:]))
                flat = tree_util.tree_leaves(results)
                return [*flat, *made.out_tree.flatten_up_to(moved)]

        types = [value.type for value in values]
        rule = self.derivative(Derivative, eqn, stack, types, inner)
        return self.of_function(with_jvp(inner, rule), values, inner)


_HELD: dict[str, Callable[..., list[Value]]] = {
    "RematTraced": HeldRules.remat,
    "CustomVJPTraced": HeldRules.held_vjp,
    "CustomJVPTraced": HeldRules.held_jvp,
}
HeldRules.rules = {**Custom.rules, "call_hi_primitive": HeldRules.held}
