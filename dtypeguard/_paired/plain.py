"""A program run in other types than its own: a type for each equation, no value beside it.

What it decides, by comparing, sorting or rounding to integers, it decides by these values.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.dtypes import bits, kind
from .._leaves.types import DType, Equation, Jaxpr, Leaf
from .._lines.equations import calls_of, is_backward, is_of_sampler, origin_of
from .._program.expand import expanded
from .._program.graph import Stack, jaxprs_in, loop_parts, manual_axes, open_jaxpr
from .._program.meshes import as_dtype, of_mesh, under_mesh
from .._rounding.rounding import round_with
from .._source.origin import Origin
from . import primitives
from .control import split
from .evaluate import NumberOf, evaluate, own_dtype, round_inwards, round_to
from .gradients import Gradients, Key, PlainValue, key_of, numbered_calls
from .products import product
from .python_numbers import PythonNumbers
from .values import Formats

# The result that has vectors.
_TURNED = {"eigh": 0, "svd": 1}

# Whether an equation is computed in wide types, by its stack and whether an operand is.
IsWide = Callable[[Stack, bool], bool]

_COMPARES = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])
_STEPS = frozenset(["sign", "floor", "ceil", "round"])


class Decision(NamedTuple):
    """What a program decides by floating values.

    Attributes:
        origin: the line; None if no line outside JAX leads to it.
        is_turn: whether it is the number of turns of a loop.
    """

    origin: Origin | None
    is_turn: bool = False


class Plain:
    """A program, of which each equation is computed as written or in wide types.

    Args:
        program: a closed jaxpr.
        formats: its dtypes.
        numbers: the Python numbers that were given to JAX when the program was traced.
        is_wide: says it of an equation; a bool says it of all.
        is_strict: whether each narrow result rounds, also where XLA would leave that out.
        calls: those of another trace, if what is wide is to be so in the source: a gradient
            has the dtype of what it is the gradient of there.
        is_given_wide: with `calls`, whether an equation is inside of a package which is
            given wide arrays: then so are the gradients of these.

    Attributes:
        decisions: of the last trace, in the order of its choices.
        backward: the narrow dtypes that a backward pass has, of the last trace.
        widened: the equations that the last trace computed in wide types, by the identity
            of these and of those around them, with their stacks.
    """

    def __init__(
        self,
        program: Jaxpr,
        formats: Formats,
        numbers: PythonNumbers,
        is_wide: IsWide | bool,
        is_strict: bool = True,
        calls: Mapping[Key, int] | None = None,
        is_given_wide: Callable[[Stack], bool] = lambda _: False,
    ):
        self._program, self._formats, self._numbers = program, formats, numbers
        self._all = is_wide if isinstance(is_wide, bool) else None
        self._is_wide = is_wide if callable(is_wide) else lambda *_: is_wide
        self.decisions: list[Decision] = []
        self.widened: dict[Key, Stack] = {}
        self.backward: set[np.dtype] = set()
        self._choices: list[Leaf] | None = []
        self._is_strict = is_strict
        self._scale: Leaf | None = None
        self._is_given_wide = is_given_wide
        self._gradients = None if calls is None else Gradients(calls)
        self._order: dict[Key, Stack] = {}

    def run(
        self, arrays: Sequence[Leaf], scale: Leaf | None = None
    ) -> tuple[list[Leaf], list[Leaf]]:
        """The results of the program, and what it chose for each of `decisions`.

        Args:
            arrays: the inputs.
            scale: a power of two. If given, what a backward pass makes wide is rounded as
                if it were multiplied by this, as it is where the loss is.
        """
        self.decisions, self._choices, self.widened = [], [], {}
        self.backward, self._scale, self._order = set(), scale, {}
        self._numbers.start_again()
        with np.errstate(over="ignore"):  # NumPy warns of constants: -1e9 in float16
            wide = self._is_wide((), False)
            given = [self._input(x, wide) for x in arrays]
            made = self._run(self._program, given, ())
            made = self._added(made, open_jaxpr(self._program).outvars)
        # No tracer outlives its trace.
        choices, self._choices = self._choices, None
        return [value.array for value in made], choices

    def calls(self) -> dict[Key, int]:
        """The numbers of the calls that lead to each equation: see `numbered_calls`."""
        return numbered_calls(self._order)

    # Values

    def _input(self, array: Leaf, wide: bool) -> PlainValue:
        dtype = jnp.asarray(array).dtype
        value = self._as(PlainValue(array), dtype, wide)
        is_fixed = wide or value.array.dtype == dtype
        return dataclasses.replace(value, is_fixed=is_fixed)

    def _as(self, value: PlainValue, dtype: DType, wide: bool | None) -> PlainValue:
        """A value for an equation where the program has one of this dtype."""
        if kind(dtype) not in ("float", "complex"):
            return PlainValue(value.array)
        formats = self._formats
        target = formats.widened(dtype) if wide else formats.written(dtype)
        is_meant = wide and value.meant is not None and self._scale is None
        array: Leaf = value.meant if is_meant else value.array
        if value.is_sample and bits(target) < bits(array.dtype):
            return PlainValue(round_inwards(array, target))
        return PlainValue(as_dtype(array, target), is_wide=bool(wide))

    def _literal(self, var: Leaf, stack: Stack) -> PlainValue:
        """A number in an equation, as it is and as it was meant."""
        own, meant = jnp.asarray(var.val, var.aval.dtype), self._meant_by(var, stack)
        return self._constant(own, meant)

    def _constant(self, array: Leaf, meant: Leaf | None = None) -> PlainValue:
        """What the program has of its own, as it is and as it was meant, if known."""
        if not primitives.is_inexact(array):
            return PlainValue(array)
        own = lax.convert_element_type(array, self._formats.written(array.dtype))
        known = array if meant is None else meant
        wide = jnp.asarray(known, self._formats.widened(array.dtype))
        return PlainValue(own, wide, is_fixed=True)

    def _meant_by(self, var: Leaf, stack: Stack) -> float | None:
        """The Python number that a scalar stands for; None if it is it."""
        origin, dtype = origin_of(stack), var.aval.dtype
        if kind(dtype) != "float" or np.ndim(var.val) or origin is None:
            return None
        return self._numbers.next_number(origin, calls_of(stack), var.val, dtype)

    def _number_of(self, wide: bool, stack: Stack) -> NumberOf:
        """The numbers that stand in how an equation combines two."""

        def number_of(var: Leaf, user: Equation) -> Leaf:
            self._numbers.next_equation()
            meant = self._meant_by(var, (user, *stack))
            is_meant = wide and meant is not None and self._scale is None
            return meant if is_meant else var.val

        return number_of

    def _rounded(self, x: Leaf) -> Leaf:
        """A result; if it is narrow, XLA shall not keep it wide."""
        is_narrow = bits(x.dtype) < 32 or self._formats.widened(x.dtype) != x.dtype
        if self._is_strict and is_narrow and primitives.is_inexact(x):
            return lax.optimization_barrier(x)
        return x

    def _of_backward(self, eqn: Equation, results: list[Leaf]) -> list[Leaf]:
        """What a backward pass makes, where the loss may be scaled."""
        dtypes = [self._formats.written(var.aval.dtype) for var in eqn.outvars]
        self.backward.update(dtype for dtype in dtypes if 0 < bits(dtype) < 32)
        if self._scale is None:
            return results
        return [
            round_to(x * self._scale, dtype) / self._scale
            if kind(dtype) == "float" and bits(dtype) < bits(x.dtype)
            else x
            for x, dtype in zip(results, dtypes)
        ]

    # Equations

    def _run(
        self, jaxpr: Jaxpr, given: Sequence[PlainValue], outer: Stack
    ) -> list[PlainValue]:
        """Runs a jaxpr, closed or open, that stands inside some equations."""
        consts = [jnp.asarray(x) for x in getattr(jaxpr, "consts", ())]
        consts = [*map(self._constant, consts)]
        jaxpr = open_jaxpr(jaxpr)
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *given)))

        def read(var: Leaf, *stack: Equation) -> PlainValue:
            return self._literal(var, stack) if hasattr(var, "val") else known[var]

        for eqn in _live(jaxpr):
            stack = (eqn, *outer)
            self._numbers.next_equation()
            with under_mesh(eqn):
                values = [read(var, *stack) for var in eqn.invars]
                made = self._equation(eqn, values, stack)
            known |= zip(eqn.outvars, made)
        return [read(var, *outer) for var in jaxpr.outvars]

    def _equation(
        self, eqn: Equation, values: list[PlainValue], stack: Stack
    ) -> Sequence[PlainValue]:
        name = eqn.primitive.name
        is_fixed = all(v.is_fixed or not primitives.is_inexact(v.array) for v in values)
        if is_fixed and is_of_sampler(stack) and self._formats.products is None:
            made = self._own(eqn, values)
            return [PlainValue(v.array, is_fixed=True, is_sample=True) for v in made]
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, eqn, values, stack)
        inside = expanded(eqn)
        if inside is not None:
            return self._run(inside, values, stack)
        jaxprs = jaxprs_in(eqn.params)
        if eqn.params.get("name") == round_with.__name__:  # pyright: ignore[reportAttributeAccessIssue]: as of any function
            return self._stochastic(eqn, values, stack)
        if name in primitives.CALLS and len(jaxprs) == 1:
            return self._run(jaxprs[0], values, stack)
        if name in primitives.DEBUG:
            return []
        is_opaque = name in primitives.AS_WRITTEN or (
            jaxprs and name not in primitives.COMBINES
        )
        is_drawn = any(primitives.is_key(v.array) for v in values)
        if is_opaque or is_drawn or name in primitives.OF_BITS:
            return self._own(eqn, values)
        made = self._computed(eqn, values, stack)
        arrays = ([value.array for value in each] for each in (values, made))
        if is_fixed and primitives.is_exact(eqn, *arrays):
            made = [dataclasses.replace(value, is_fixed=True) for value in made]
        return made

    def _own(self, eqn: Equation, values: Sequence[PlainValue]) -> list[PlainValue]:
        """The results of an equation in the dtypes that the program has."""
        exact = [v.array if v.meant is None else v.meant for v in values]
        operands = [
            as_dtype(x, var.aval.dtype) if primitives.is_inexact(x) else x
            for x, var in zip(exact, eqn.invars)
        ]
        return [PlainValue(x) for x in evaluate(eqn, operands, own_dtype)]

    def _wants_wide(
        self, eqn: Equation, values: Sequence[PlainValue], stack: Stack
    ) -> bool:
        return self._is_wide(stack, any(value.is_wide for value in values))

    def _computed(
        self, eqn: Equation, values: Sequence[PlainValue], stack: Stack
    ) -> list[PlainValue]:
        """The results of an equation without others inside it."""
        name, formats = eqn.primitive.name, self._formats
        self._order[key_of(stack)] = stack
        gradients = self._gradients if is_backward(stack) else None
        if name != "add_any":
            values = self._added(values, eqn.invars)
            if gradients is not None:
                values = [
                    dataclasses.replace(v, is_due=gradients.is_of_returned(stack, v))
                    for v in values
                ]
                values = self._added(values, eqn.invars)
        wide = self._wants_wide(eqn, values, stack)
        pairs = [*zip(values, eqn.invars)]
        operands = [self._as(v, var.aval.dtype, wide).array for v, var in pairs]
        as_if = formats.narrow
        is_own = name in primitives.OF_OWN_DTYPES
        if not wide and as_if is not None and (is_own or as_if.itemsize < 2):
            made = [self._as(v, v.array.dtype, False) for v in self._own(eqn, values)]
        else:
            try:
                dtype_of = formats.widened if wide else formats.written
                if algorithm := formats.algorithm(eqn, wide):
                    results = product(eqn, operands, algorithm)
                else:
                    number_of = self._number_of(wide, stack)
                    results = evaluate(eqn, operands, dtype_of, number_of)
                results = [*map(self._rounded, results)]
                if is_backward(stack):
                    results = self._of_backward(eqn, results)
                made = [
                    PlainValue(x, None, wide and primitives.is_inexact(x)) for x in results
                ]
            except Exception:  # it does not take wider operands
                return self._own(eqn, values)
        if wide:
            self.widened[key_of(stack)] = stack
        if self._gradients is not None and gradients is None:
            self._gradients.note(stack, values, made)
        elif gradients is not None and not self._is_given_wide(stack):
            is_part = any(value.is_due for value in values)
            made = [
                dataclasses.replace(v, is_due=is_part or gradients.is_of_taken(stack, v))
                for v in made
            ]
        if any(kind(getattr(x, "dtype", None)) == "float" for x in operands):
            self._decided(eqn, operands, [v.array for v in made], stack)
        return made

    def _added(
        self, values: Sequence[PlainValue], variables: Sequence[Leaf]
    ) -> list[PlainValue]:
        """Values of which all parts are added: gradients of narrow values are rounded."""
        made = []
        for value, var in zip(values, variables):
            if value.is_due:
                value = self._as(value, var.aval.dtype, False)
                value = dataclasses.replace(value, array=self._rounded(value.array))
            made.append(value)
        return made

    # Decisions

    def _decided(
        self, eqn: Equation, operands: list[Leaf], made: list[Leaf], stack: Stack
    ) -> None:
        """Notes what an equation decides by floating values, if it does."""
        name = eqn.primitive.name
        if name == "select_and_scatter_add":  # where the maxima of windows are
            operands[0] = jnp.ones_like(operands[0])
            made = [made[0].at[...].set(0) != evaluate(eqn, operands, own_dtype)[0]]
        elif name in _TURNED and len(made) > 1:  # an eigenvector may have either sign
            made = [_signs(made[_TURNED[name]])]
        elif name not in _COMPARES | _STEPS:  # an order, or a number that is made an index
            made = [x for x in made if kind(x.dtype) in ("int", "uint")]
        for choice in made:
            self._chose(Decision(origin_of(stack)), choice)

    def _chose(self, decision: Decision, choice: Leaf) -> None:
        if self._choices is not None:
            self.decisions.append(decision)
            self._choices.append(choice)

    def _unheard(
        self, run: Callable[..., list[PlainValue]]
    ) -> Callable[..., list[PlainValue]]:
        """Runs what is traced more than once, or not each time, and notes no choices."""

        def quiet(*args):
            outer, self._choices = self._choices, None
            try:
                return run(*args)
            finally:
                self._choices = outer

        return quiet

    # What needs other rules

    def _settled(
        self, run: Callable[..., list[PlainValue]], values: list[PlainValue], eqn: Equation
    ) -> list[bool]:
        """Which of the results of a loop's body or of branches are wide."""
        dtypes = [var.aval.dtype for var in eqn.outvars]
        if self._all is not None:
            return [self._all] * len(dtypes)
        wide = [value.is_wide for value in values]
        wide += [False] * (len(dtypes) - len(wide))
        quiet = self._unheard(run)
        while True:
            shapes = jax.eval_shape(lambda wide=tuple(wide): quiet(wide))
            found = [value.is_wide for value in shapes]
            if all(w >= f for w, f in zip(wide, found)):
                return wide
            wide = [w or f for w, f in zip(wide, found)]

    def _all_as(
        self, values: Sequence[PlainValue], eqn: Equation, wide: Sequence[bool]
    ) -> list[PlainValue]:
        """Results of an equation in the types that all its parts have."""
        dtypes = (var.aval.dtype for var in eqn.outvars)
        values = self._added(values, eqn.outvars)
        return [self._as(v, d, w) for v, d, w in zip(values, dtypes, wide)]

    def _fixed(
        self, values: Sequence[PlainValue], variables: Sequence[Leaf]
    ) -> list[PlainValue]:
        """Values without numbers that may be either of two."""
        values = self._added(values, variables)
        wide, pairs = self._is_wide((), False), zip(values, variables)
        return [
            v if v.meant is None else self._as(v, var.aval.dtype, wide) for v, var in pairs
        ]

    def _scan(self, eqn: Equation, values: list[PlainValue], stack: Stack):
        body, _, consts, count = loop_parts(eqn)
        outside, carry, xs = split(self._fixed(values, eqn.invars), consts, count)
        inside: list[Decision] = []
        params, all_xs = eqn.params, xs if eqn.params["length"] else []

        def first(x: PlainValue) -> PlainValue:
            with of_mesh(x.array):
                return dataclasses.replace(x, array=x.array[0])

        def made_of(wide: Sequence[bool], carry=carry, xs=()):
            xs = xs or [*map(first, all_xs)]
            carry = self._all_as(carry, eqn, wide[:count])
            return self._run(body, [*outside, *carry, *xs], stack)

        def step(carry, xs):
            outer = self.decisions, self._choices
            hears = self._choices is not None
            self.decisions, self._choices = [], [] if hears else None
            made = made_of(wide, carry, xs)
            inside[:], choices = self.decisions, self._choices
            self.decisions, self._choices = outer
            made = self._all_as(made, eqn, wide)
            return made[:count], (made[count:], choices)

        options = {"reverse": params["reverse"], "unroll": params.get("unroll", 1)}
        wide = self._settled(made_of, carry, eqn)
        carry = self._all_as(carry, eqn, wide)
        carry, (ys, choices) = lax.scan(step, carry, xs, params["length"], **options)
        for decision, choice in zip(inside, choices or ()):
            self._chose(decision, choice)
        return [*carry, *ys]

    def _while(self, eqn: Equation, values: list[PlainValue], stack: Stack):
        body, of_condition, consts, _ = loop_parts(eqn)
        condition = eqn.params["cond_jaxpr"]
        values = self._fixed(values, eqn.invars)
        before, outside, carry = split(values, of_condition, consts)

        def goes_on(turn):
            run = self._unheard(self._run)
            return run(condition, [*before, *turn[1]], stack)[0].array

        def made_of(wide: Sequence[bool], carry=carry):
            carry = self._all_as(carry, eqn, wide)
            return self._run(body, [*outside, *carry], stack)

        def step(turn):
            turns, carry = turn
            made = self._all_as(self._unheard(made_of)(wide, carry), eqn, wide)
            is_on = goes_on(turn) if axes else jnp.bool_(True)

            def chosen(new, old):  # under vmap, each element goes on by itself
                shape = is_on.shape + (1,) * (new.array.ndim - axes)
                array = jnp.where(is_on.reshape(shape), new.array, old.array)
                return dataclasses.replace(new, array=array)

            made = [*map(chosen, made, carry)] if axes else made
            return turns + is_on.astype(turns.dtype), made

        axes = len(open_jaxpr(condition).outvars[0].aval.shape)
        wide = self._settled(made_of, carry, eqn)
        turns = jnp.zeros(open_jaxpr(condition).outvars[0].aval.shape, jnp.int32)
        start = turns, self._all_as(carry, eqn, wide)
        turns, made = lax.while_loop(lambda turn: jnp.any(goes_on(turn)), step, start)
        self._chose(Decision(origin_of(stack), is_turn=True), turns)
        return made

    def _cond(self, eqn: Equation, values: list[PlainValue], stack: Stack):
        index, *operands = self._fixed(values, eqn.invars)

        def made_of(wide: Sequence[bool], branch: Jaxpr):
            return self._all_as(self._run(branch, operands, stack), eqn, wide)

        branches = eqn.params["branches"]
        wide = [False] * len(eqn.outvars)
        for branch in branches:
            own = lambda _, branch=branch: self._run(branch, operands, stack)
            found = self._settled(own, [], eqn)
            wide = [w or f for w, f in zip(wide, found)]
        runs = [
            lambda branch=branch: self._unheard(made_of)(wide, branch)
            for branch in branches
        ]
        return lax.switch(index.array, runs)

    def _shard_map(self, eqn: Equation, values: list[PlainValue], stack: Stack):
        params = eqn.params
        if "in_specs" not in params or not hasattr(jax, "shard_map"):  # before JAX 0.7
            return self._own(eqn, values)

        def body(arrays):
            given = [dataclasses.replace(v, array=x) for v, x in zip(values, arrays)]
            results[:] = self._unheard(self._run)(params["jaxpr"], given, stack)
            return [value.array for value in results]

        values, results = self._fixed(values, eqn.invars), list[PlainValue]()
        made = jax.shard_map(
            body,
            mesh=params["mesh"],
            in_specs=([*params["in_specs"]],),
            out_specs=[*params["out_specs"]],
            axis_names=set(manual_axes(eqn)),
            check_vma=params["check_vma"],
        )([v.array for v in values])
        return [dataclasses.replace(v, array=x) for v, x in zip(results, made)]

    def _linear_solve(self, eqn: Equation, values: list[PlainValue], stack: Stack):
        sizes = eqn.params["const_lengths"]
        _, _, consts, _, given = split(values, *(size or 0 for size in sizes))
        return self._run(eqn.params["jaxprs"].solve, [*consts, *given], stack)

    def _reduce_precision(self, eqn: Equation, values: list[PlainValue], stack: Stack):
        if self._wants_wide(eqn, values, stack) and not self._formats.is_own:
            return values
        return self._computed(eqn, values, stack)

    def _stochastic(self, eqn: Equation, values: list[PlainValue], stack: Stack):
        """A stochastic rounding of dtypeguard, of the first floating operand."""
        if self._formats.is_own or not self._wants_wide(eqn, values, stack):
            return self._own(eqn, values)
        pairs = zip(values, eqn.invars)
        value = next(v for v, var in pairs if primitives.is_inexact(var.aval))
        return [self._as(value, var.aval.dtype, True) for var in eqn.outvars]


def _signs(vectors: Leaf) -> Leaf:
    """Whether the largest component of each column is positive."""
    largest = jnp.argmax(jnp.abs(vectors), axis=-2, keepdims=True)
    return jnp.real(jnp.take_along_axis(vectors, largest, axis=-2)) > 0


def _live(jaxpr: Jaxpr) -> list[Equation]:
    """The equations that something depends on: others decide nothing."""
    used = {var for var in jaxpr.outvars if not hasattr(var, "val")}
    live = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not used.isdisjoint(eqn.outvars):
            live.append(eqn)
            used.update(var for var in eqn.invars if not hasattr(var, "val"))
    return live[::-1]


_SPECIAL = {
    "scan": Plain._scan,
    "while": Plain._while,
    "cond": Plain._cond,
    "shard_map": Plain._shard_map,
    "custom_linear_solve": Plain._linear_solve,
    "reduce_precision": Plain._reduce_precision,
}
