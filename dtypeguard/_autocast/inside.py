"""Emits equations that hold others, so that the program keeps its form."""

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax

from .._leaves.compat import as_function
from .._leaves.internals import ForeignNames
from .._leaves.types import DType, Equation, Jaxpr, Leaf
from .._program.graph import (
    PRODUCTS as OF_PRODUCTS,
    Stack,
    open_jaxpr,
)
from .asked import asks_for_float32
from .emit import ANY_DTYPES, Emitter, bind, rule_of
from .entries import FLOW, PRODUCTS
from .matching import key_of_line
from .reach import Variables
from .values import (
    Value,
    ValueType,
    cast,
    dtype_of,
    is_float,
    is_narrower,
    most_lost,
    retyped,
    scope_for,
)

# The parameter that holds the jaxpr of a call.
_CALLS: dict[str, str] = {
    **dict.fromkeys(ForeignNames("jit@jax>=0.7 pjit@jax<0.7 remat2"), "jaxpr"),
    **dict.fromkeys(
        ForeignNames("closed_call@jax<0.12 eval_jaxpr@jax>=0.4.31"), "call_jaxpr"
    ),
}
# So many jaxprs are kept, so that what was emitted once compiles once.
_MOST = 2000


class Inner(NamedTuple):
    """A jaxpr in the dtypes of a plan.

    Attributes:
        jaxpr: closed.
        types: those of its results.
        is_changed: whether it is another one than that of the program.
        products: how many products it has.
        of: the jaxpr of the program, whose identity stands for it.
    """

    jaxpr: Jaxpr
    types: list[ValueType]
    is_changed: bool
    products: int
    of: Jaxpr


Known = OrderedDict[object, Inner]


class Inside(Emitter):
    """Emits all equations.

    Attributes:
        known: the jaxprs that were emitted.
    """

    def __init__(self, known: Known, *given: Any):
        super().__init__(*given)
        self.known = known
        self.is_of_products = self.plan.default == PRODUCTS and not self.plan.entries

    rules: ClassVar[dict[str, Callable[..., list[Value]]]] = {}

    def equation(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        name = eqn.primitive.name
        rule = self.rules.get(name)
        if rule is None and self._stands(eqn, values):
            return [*map(Value, bind(eqn, [x.array for x in values], eqn.params))]
        self.matcher.entry(stack)  # which then has matched
        if not _is_plain(eqn):
            return self.written(eqn, stack, values, reached)
        rule = rule or rule_of(eqn)
        may_ask = name in OF_PRODUCTS or not self.is_of_products
        if not (may_ask and name not in self.rules and asks_for_float32(stack)):
            return rule(self, eqn, stack, values, reached)
        asked = [x._replace(is_kept=is_float(x.array)) for x in values]
        made = rule(self, eqn, stack, asked, reached)
        # The source may cast back as well, which leaves no equation either.
        is_kept = any(value.is_kept for value in values)
        return [value._replace(is_kept=value.is_kept and is_kept) for value in made]

    def _stands(self, eqn: Equation, values: Sequence[Value]) -> bool:
        """Whether it is plain that an equation is as written: nothing near it is narrow."""
        return (
            self.is_of_products
            and eqn.primitive.name not in ANY_DTYPES
            and all(
                dtype_of(value.array) == var.aval.dtype
                and not (value.is_kept or value.lost or hasattr(var, "val"))
                for value, var in zip(values, eqn.invars)
            )
        )

    # Jaxprs

    def inner(
        self,
        jaxpr: Jaxpr,
        stack: Stack,
        types: Sequence[ValueType],
        leads: Sequence[bool],
        results: Sequence[DType | None] | None = None,
    ) -> Inner:
        """A jaxpr inside of an equation, for operands of these types.

        Args:
            jaxpr: closed or open.
            stack: the equations around it.
            types: those of its arguments.
            leads: which of its results lead to a product.
            results: the dtypes of its results; None for those that come out.
        """
        opened = open_jaxpr(jaxpr)
        leads = [*leads] if self.plan.default == FLOW else []
        around = key_of_line(stack) if self.plan.entries else None
        key = id(opened), (*types,), (*leads,), results and (*results,), around

        def emit() -> Inner:
            variables = zip(opened.invars, types)
            avals = [retyped(var.aval, kind.dtype) for var, kind in variables]
            trace = lambda function: jax.make_jaxpr(function)(avals)
            with scope_for(*(kind.dtype for kind in types)):
                return self.emitted(jaxpr, stack, types, leads, results, trace)

        return self.once(key, emit)

    def once(self, key: object, emit: Callable[[], Inner]) -> Inner:
        """What is emitted for a key, the first time; it counts each time."""
        if key not in self.known:
            before, products = self.changes, self.products
            self.known[key] = emit()
            self.changes, self.products = before, products
            if len(self.known) > _MOST:
                self.known.popitem(last=False)
        found = self.known[key]
        self.changes += found.is_changed
        self.products += found.products
        return found

    def emitted(
        self,
        jaxpr: Jaxpr,
        stack: Stack,
        types: Sequence[ValueType],
        leads: Sequence[bool],
        results: Sequence[DType | None] | None,
        trace: Callable[[Callable[..., list[Leaf]]], Jaxpr],
    ) -> Inner:
        """A jaxpr in the dtypes of a plan.

        Args:
            jaxpr: closed or open.
            stack: the equations around it.
            types: those of its arguments.
            leads: which of its results lead to a product.
            results: the dtypes of its results; None for those that come out.
            trace: traces a function of a list of its arguments.
        """
        opened, reached = open_jaxpr(jaxpr), self.reached(jaxpr, stack, leads)
        made_types: list[ValueType] = []
        before, products = self.changes, self.products

        def function(arrays):
            values = [Value(x, *kind[1:]) for x, kind in zip(arrays, types)]
            made = self.run(jaxpr, values, stack, reached)
            made = self.cast(made, opened.outvars, reached, results)
            made_types[:] = [value.type for value in made]
            return [value.array for value in made]

        traced = trace(function)
        is_changed = self.changes > before or any(
            made.dtype != var.aval.dtype
            for made, var in zip((*types, *made_types), (*opened.invars, *opened.outvars))
            if is_float(var.aval)
        )
        return Inner(traced, made_types, is_changed, self.products - products, jaxpr)

    def reached(self, jaxpr: Jaxpr, stack: Stack, leads: Sequence[bool]) -> Variables:
        if self.plan.default != FLOW:
            return frozenset()
        return self.reach.variables(jaxpr, stack, leads)

    def cast(
        self,
        values: Sequence[Value],
        variables: Sequence[Any],
        reached: Variables,
        results: Sequence[DType | None] | None,
    ) -> list[Value]:
        """Results in the dtypes in which they leave a jaxpr."""
        asked = [None] * len(values) if results is None else results
        dtypes = [
            self.settled(value, var, reached) if dtype is None else dtype
            for value, var, dtype in zip(values, variables, asked)
        ]
        return [
            value if dtype is None else value._replace(array=cast(value.array, dtype))
            for value, dtype in zip(values, dtypes)
        ]

    def bound(
        self,
        eqn: Equation,
        values: Sequence[Value],
        inner: Sequence[Inner],
        params: dict[str, Any],
    ) -> list[Value]:
        """The results of an equation with these jaxprs in place of its own."""
        if not any(each.is_changed for each in inner):
            params = {}
        arrays = [value.array for value in values]
        types = inner[0].types
        with scope_for(*map(dtype_of, arrays), *(kind.dtype for kind in types)):
            made = bind(eqn, arrays, {**eqn.params, **params})
        return [Value(x, *kind[1:]) for x, kind in zip(made, types)]

    # Calls

    def call(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        name = _CALLS[eqn.primitive.name]
        own = eqn.params[name]
        # A buffer that is donated has room for a result of its own dtype.
        is_donated = any(eqn.params.get("donated_invars", ()))
        results = [var.aval.dtype for var in eqn.outvars] if is_donated else None
        types, leads = types_of(values), leading(eqn, reached)
        inner = self.inner(own, stack, types, leads, results)
        return self.bound(eqn, values, [inner], {name: like(own, inner.jaxpr)})

    def branches(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        operands = values[1:]
        types, leads = types_of(operands), leading(eqn, reached)
        own = eqn.params["branches"]
        made = [self.inner(each, stack, types, leads) for each in own]
        results = [widest(each) for each in zip(*(x.types for x in made))]
        if any([kind.dtype for kind in x.types] != results for x in made):
            made = [self.inner(each, stack, types, leads, results) for each in own]
        kinds = [_joined(each) for each in zip(*(x.types for x in made))]
        made = [each._replace(types=kinds) for each in made]
        jaxprs = (*(like(*each) for each in zip(own, (x.jaxpr for x in made))),)
        return self.bound(eqn, values, made, {"branches": jaxprs})


def evaluated(jaxpr: Jaxpr, arrays: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr."""
    with scope_for(*map(dtype_of, arrays)):
        return [*as_function(jaxpr)(*arrays)]


def like(own: Jaxpr, made: Jaxpr) -> Jaxpr:
    """A closed jaxpr as the parameter that stood in its place."""
    return open_jaxpr(made) if open_jaxpr(own) is own else made


def leading(eqn: Equation, reached: Variables) -> list[bool]:
    """Which results of an equation lead to a product."""
    return [var in reached for var in eqn.outvars]


def types_of(values: Sequence[Value]) -> list[ValueType]:
    return [value.type for value in values]


def widest(types: Sequence[ValueType]) -> DType | None:
    dtypes = [each.dtype for each in types]
    wider = lambda a, b: b if is_narrower(a, b) else a
    return functools.reduce(wider, dtypes) if len({*dtypes}) > 1 else dtypes[0]


def _joined(types: Sequence[ValueType]) -> ValueType:
    is_kept = any(kind.is_kept for kind in types)
    return ValueType(types[0].dtype, is_kept, lost=most_lost(types))


def _is_plain(eqn: Equation) -> bool:
    """Whether an equation has no mutable references, of which no other type is made."""
    variables = (*eqn.invars, *eqn.outvars)
    return not any(hasattr(var.aval, "inner_aval") for var in variables)


Inside.rules = {**dict.fromkeys(_CALLS, Inside.call), "cond": Inside.branches}
