"""Which values lead to a product: what stands between two products can be narrow."""

from collections.abc import Sequence
from typing import Any

from .._leaves.types import Equation, Jaxpr
from .._lines.equations import Written
from .._program.graph import PRODUCTS, Stack, jaxprs_in, loop_parts, open_jaxpr
from .values import is_float

Variables = frozenset[Any]


class Reach:
    """Finds the variables of jaxprs from which a product is reached.

    A value of the forward pass counts if it leads to a product of that pass: the loss leads
    to the products of the backward pass, and is none that stands between two layers.
    """

    def __init__(self):
        self._known: dict[object, tuple[Jaxpr, Variables]] = {}

    def variables(self, jaxpr: Jaxpr, outer: Stack, results: Sequence[bool]) -> Variables:
        """The variables of a jaxpr that lead to a product.

        Args:
            jaxpr: closed or open.
            outer: the equations around it.
            results: which of its results lead to a product outside.
        """
        opened = open_jaxpr(jaxpr)
        key = id(opened), Written(outer).is_backward, (*results,)
        if key not in self._known:
            found = self._variables(opened, outer, results)
            self._known[key] = opened, frozenset(found)
        return self._known[key][1]

    def _variables(self, jaxpr: Jaxpr, outer: Stack, results: Sequence[bool]) -> set[Any]:
        pairs = zip(jaxpr.outvars, results)
        ends = {var for var, leads in pairs if leads and not hasattr(var, "val")}
        # By whether the product that is reached is one of the backward pass.
        reached = {False: {*ends}, True: {*ends}}
        made_backward = set[Any]()
        for eqn in reversed(jaxpr.eqns):
            stack = (eqn, *outer)
            is_back = Written(stack).is_backward
            if is_back:
                made_backward.update(eqn.outvars)
            leads = [var in reached[is_back] for var in eqn.outvars]
            reached[is_back] |= self._operands(eqn, stack, leads)
        inputs = {*jaxpr.invars}
        forward = reached[False] - made_backward
        return forward | (reached[True] & (made_backward | inputs))

    def _operands(self, eqn: Equation, stack: Stack, leads: Sequence[bool]) -> set[Any]:
        """The operands of an equation that lead to a product."""
        floats = {x for x in eqn.invars if not hasattr(x, "val") and is_float(x.aval)}
        if eqn.primitive.name in PRODUCTS:
            return floats
        for names, operands in _INSIDE.items():
            if eqn.primitive.name in names:
                return floats.intersection(operands(self, eqn, stack, leads))
        for jaxpr in map(open_jaxpr, jaxprs_in(eqn.params)):
            if len(jaxpr.invars) == len(eqn.invars):
                return floats.intersection(self._of(jaxpr, eqn.invars, stack, leads))
        return floats if any(leads) else set()

    def _of(
        self, jaxpr: Jaxpr, operands: Sequence[Any], stack: Stack, leads: Sequence[bool]
    ) -> list[Any]:
        inside = self.variables(jaxpr, stack, leads)
        variables = open_jaxpr(jaxpr).invars
        return _read([*zip(operands, variables)], inside)

    def _of_branches(self, eqn: Equation, stack: Stack, leads: Sequence[bool]) -> list[Any]:
        return [
            var
            for branch in eqn.params["branches"]
            for var in self._of(branch, eqn.invars[1:], stack, leads)
        ]

    def _of_loop(self, eqn: Equation, stack: Stack, leads: Sequence[bool]) -> list[Any]:
        body, before, _, _ = loop_parts(eqn)
        inside = self.around(eqn, stack, leads)
        variables = open_jaxpr(body).invars
        return _read([*zip(eqn.invars[before:], variables)], inside)

    def around(self, eqn: Equation, stack: Stack, leads: Sequence[bool]) -> Variables:
        """The variables of the body of a loop that lead to a product."""
        return self.variables(loop_parts(eqn).body, stack, self.turned(eqn, stack, leads))

    def turned(self, eqn: Equation, stack: Stack, leads: Sequence[bool]) -> list[bool]:
        """Which results of the body do: what is carried comes round again."""
        body, _, consts, carried = loop_parts(eqn)
        variables = open_jaxpr(body).invars[consts : consts + carried]
        results = [*leads]
        while True:
            inside = self.variables(body, stack, results)
            carry = zip(results, variables)
            turned = [result or var in inside for result, var in carry]
            if turned == results[:carried]:
                return results
            results[:carried] = turned


def _read(pairs: Sequence[tuple[Any, Any]], inside: Variables) -> list[Any]:
    """The operands, but for numbers, whose variables inside lead to a product."""
    return [x for x, inner in pairs if inner in inside and not hasattr(x, "val")]


_INSIDE = {
    ("cond",): Reach._of_branches,
    ("scan", "while"): Reach._of_loop,
}
