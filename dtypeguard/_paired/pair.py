"""A program with a wide value beside every value that it computes."""

import functools
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.casts import Cast
from .._leaves.dtypes import bits, kind
from .._leaves.types import DType, Equation, Function, Jaxpr, Leaf
from .._lines.equations import (
    calls_of,
    cast_of_ours,
    is_backward,
    is_explicit,
    is_of_users,
    origin_of,
    scope_of,
)
from .._program.expand import expanded
from .._program.graph import Stack, jaxprs_in, open_jaxpr
from .._program.meshes import on_mesh, under_mesh
from .._rounding.rounding import round_with
from .._source.origin import Origin
from . import primitives
from .algebra import ALIGNED
from .control import PairedControlFlow, split
from .draws import Draws
from .evaluate import evaluate, own_dtype, rounded_as
from .finite import Finite
from .gradients import key_of
from .primitives import COMBINES, is_inexact
from .products import Algorithm, product
from .python_numbers import PythonNumbers
from .values import NOWHERE, Formats, Line, Value

# The parts of trees whose casts by dtypeguard count as lines of their own.
_MOST_CASTS = 32


class Paired(PairedControlFlow):
    """A program that computes a wide value beside each of its own.

    The wide value of an equation `y = op(x)` is `op_wide(w_x)`. If its line rounds, that is
    rounded to the dtype of the program. With no line rounding, the wide values are those of
    the program in wide types; with all lines rounding, those of the program as written.

    Attributes:
        formats: its dtypes.
        lines: the lines that can round, numbered. Complete after one trace.
        numbers: the Python numbers that were given to JAX when the program was traced.
        constants: the lines and numbers that a trace rounds there; each has a switch.
        unknown: the primitives that are run as written, since they have no wide form here.

    Args:
        closed_jaxpr: the program.
        formats: its dtypes.
        numbers: the Python numbers that were given to JAX when the program was traced.
    """

    def __init__(self, closed_jaxpr: Jaxpr, formats: Formats, numbers: PythonNumbers):
        self.lines: list[Line] = []
        self.constants: list[tuple[int, float]] = []
        self.unknown: set[str] = set()
        self._program = closed_jaxpr
        self.formats = formats
        self.numbers = numbers
        self._numbers: dict[tuple[object, ...], int] = {}
        self._rounds: list[list[Leaf]] = []
        self._finite: Finite | None = None
        self._scalars: dict[int, tuple[Leaf, float]] = {}  # by identity, which they keep
        self._draws = Draws(formats)
        if formats.narrow is not None:
            self._line(None)

    def __call__(
        self, amounts: Leaf, arrays: Sequence[Leaf], finite: Finite | None = None
    ) -> list[Value]:
        """Runs the program.

        Args:
            amounts: a vector with 1 for each of `lines` that rounds, and from its end for
                each of `constants`; 0 elsewhere. A line with 2 rounds in the forward pass
                alone, and with 3 in the backward pass.
            arrays: the inputs.
            finite: if given, it follows where values stop being finite.
        """
        self.numbers.start_again()
        self._finite = finite
        for only in (2, 3):
            rounds = (amounts == 1) | (amounts == only)
            at = functools.partial(lax.index_in_dim, rounds, keepdims=False)
            self._rounds.append([at(number) for number in range(amounts.shape[0])])
        try:
            with np.errstate(over="ignore"):  # NumPy warns of constants: -1e9 in float16
                given = [self._given(x, self._numbers.get(())) for x in arrays]
                for value, array in zip(given, arrays):
                    if value.narrow.dtype == jnp.result_type(array):  # it is not rounded
                        self._draws.fix(value)
                if finite is not None:
                    finite.start()
                    for number, value in enumerate(given):
                        finite.follow((), [], value, number)
                return self._run(self._program, given, ())
        finally:  # no tracer outlives its trace
            self._rounds, self._finite, self._scalars = [], None, {}
            self._draws = Draws(self.formats)

    # Lines

    def number_of(self, stack: Stack) -> int | None:
        """The number of the line of an equation; None if that does not round."""
        origin = (origin_of(stack) or NOWHERE) if stack else None
        return self._numbers.get(self._key(origin, cast_of_ours(stack)))

    def _key(self, origin: Origin | None, cast: Cast | None) -> tuple[object, ...]:
        # Of a package, each line of the user's that calls it.
        places = () if origin is None else (origin, origin.users)
        key = tuple((each.file, each.line) for each in places)
        if cast is None:
            return key
        # Each part of a tree by itself, but of many all others together.
        key = (key, cast.owner, cast.part)
        is_full = sum(bool(line.casts) for line in self.lines) >= _MOST_CASTS
        return key if key in self._numbers or not is_full else (*key[:2], "")

    def _line(self, origin: Origin | None, cast: Cast | None = None) -> int:
        key = self._key(origin, cast)
        if key not in self._numbers:
            self._numbers[key] = len(self.lines)
            self.lines.append(Line(origin))
        if cast is not None:
            self.lines[self._numbers[key]].casts[cast] = None
        return self._numbers[key]

    def _rounded(
        self,
        number: int,
        exact: Leaf,
        narrow: Leaf,
        from_narrow: Leaf | None,
        stack: Stack = (),
    ) -> Leaf:
        """The wide value of a result: `exact`, or `rounded_as` it is if its line rounds."""
        rounded = rounded_as(narrow, exact, from_narrow)
        return lax.select(self._does_round(number, stack), rounded, exact)

    def _does_round(self, number: int, stack: Stack) -> Leaf:
        rounds = self._rounds[number >= 0 and is_backward(stack)]
        # A trace that finds too many lines is made once more.
        return on_mesh(rounds[number if abs(number) < len(rounds) else 0])

    # Values

    def _given(self, array: Leaf, number: int | None) -> Value:
        """An input or a constant of the program, which `narrow` may round."""
        array = jnp.asarray(array) if not hasattr(array, "dtype") else array
        dtype = array.dtype
        if kind(dtype) not in ("float", "complex"):
            return Value(array)
        wide = lax.convert_element_type(array, self.formats.widened(dtype))
        narrow = lax.convert_element_type(array, self.formats.written(dtype))
        if number is not None and narrow.dtype != dtype:
            self.lines[number].dtypes.add(str(narrow.dtype))
            wide = self._rounded(number, wide, narrow, wide)
        return Value(narrow, wide)

    def _literal(self, var: Leaf, stack: Stack) -> Value:
        """A number that stands in an equation."""
        value = self._given(jnp.asarray(var.val, var.aval.dtype), None)
        meant = self._meant_by(var.val, var.aval.dtype, stack)
        if meant is not None and self._rounds_to(value.narrow):
            value = self._of_number(meant, value.narrow, stack)
        if kind(var.aval.dtype) == "float" and not np.ndim(var.val):
            number = float(var.val) if meant is None else meant
            self._scalars[id(value.narrow)] = value.narrow, number
        return value

    def _meant_by(self, number: Leaf, dtype: DType, stack: Stack):
        """The Python number that a scalar stands for in an equation; None if it is it."""
        origin = origin_of(stack)
        if origin is None or kind(dtype) != "float" or np.ndim(number):
            return None
        return self.numbers.next_number(origin, calls_of(stack), number, dtype)

    def _of_number(self, meant: float, narrow: Leaf, stack: Stack) -> Value:
        """A number that is rounded, with a switch of its own."""
        number = self._line(origin_of(stack) or NOWHERE)
        self.lines[number].dtypes.add(str(narrow.dtype))
        rounded = np.asarray(meant).astype(narrow.dtype)
        self.lines[number].constants[meant] = float(rounded)
        if (number, meant) not in self.constants:
            self.constants.append((number, meant))
        switch = -1 - self.constants.index((number, meant))
        exact = jnp.asarray(meant, self.formats.widened(narrow.dtype))
        return Value(narrow, self._rounded(switch, exact, narrow, exact))

    # Equations

    def _run(self, jaxpr: Jaxpr, given: Sequence[Value], outer: Stack) -> list[Value]:
        """Runs a jaxpr, closed or open, that stands inside some equations."""
        consts = [self._constant(x) for x in getattr(jaxpr, "consts", ())]
        jaxpr = open_jaxpr(jaxpr)
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *given)))

        def read(var: Leaf, *stack: Equation) -> Value:
            if hasattr(var, "val"):
                value = self._literal(var, stack)
                if self._finite is not None:
                    self._finite.constant(value, var.val)
                return value
            value = known[var]
            known[var] = self._outside(value)
            if self._finite is not None:
                self._finite.same([known[var]], [value])
            return known[var]

        scalars, draws = self._scalars, self._draws  # no tracer outlives its trace
        self._scalars, self._draws = dict(scalars), draws.inside()
        for eqn in jaxpr.eqns:
            stack = (eqn, *outer)
            self.numbers.next_equation()
            with under_mesh(eqn):
                values = self._of_sampler(stack, known)
                if values is not None:
                    made = [Value(x) for x in self._own(eqn, values, wide=True)]
                else:
                    values = [read(var, *stack) for var in eqn.invars]
                    made = self._equation(eqn, values, stack)
                    self._draws.follow(eqn, values, made)
                if self._finite is not None:
                    for value in made:
                        self._finite.follow(stack, values, value)
            known |= zip(eqn.outvars, made)
        results = [read(var, *outer) for var in jaxpr.outvars]
        draws.leave(self._draws, results)
        self._scalars, self._draws = scalars, draws
        return results

    def _of_sampler(self, stack: Stack, known: Mapping[Leaf, Value]) -> list[Value] | None:
        """The operands of an equation that draws a sample; None for another one."""
        return self._draws.operands(stack, known)

    def _outside(self, value: Value) -> Value:
        """A value outside of the sampler that may have drawn it."""
        return self._draws.left(value)

    def _constant(self, array: Leaf) -> Value:
        """A constant, which may be infinite: masks are."""
        value = self._draws.fix(self._given(array, None))
        if self._finite is not None:
            self._finite.constant(value, array)
        return value

    def _equation(
        self, eqn: Equation, values: list[Value], stack: Stack
    ) -> Sequence[Value]:
        name = eqn.primitive.name
        if any(hasattr(var.aval, "inner_aval") for var in (*eqn.invars, *eqn.outvars)):
            raise TypeError(
                "audit_precision does not run programs with mutable references "
                f"({name}): give it a function that returns new arrays."
            )
        if name in _SPECIAL:
            return _SPECIAL[name](self, eqn, values, stack)
        inside = expanded(eqn)
        if inside is not None:
            return self._run(inside, values, stack)
        jaxprs = jaxprs_in(eqn.params)
        has_wide = any(v.wide is not None for v in values)
        if has_wide and eqn.params.get("name") == round_with.__name__:  # pyright: ignore[reportAttributeAccessIssue]: as of any function
            return self._stochastic(eqn, values, stack)
        if name in primitives.CALLS and len(jaxprs) == 1:
            return self._run(jaxprs[0], values, stack)
        if name in primitives.DEBUG:
            return []
        is_opaque = name in primitives.AS_WRITTEN or (jaxprs and name not in COMBINES)
        is_drawn = any(primitives.is_key(v.narrow) for v in values) and any(
            is_inexact(var.aval) for var in eqn.outvars
        )
        if is_opaque or is_drawn:
            return self._as_written(eqn, values)
        if name in primitives.OF_BITS:
            if has_wide:
                self.unknown.add(name)
            return [self._given(x, None) for x in self._own(eqn, values)]
        narrow = self._as_computed(eqn, values)
        if not any(map(is_inexact, narrow)):
            return [Value(x) for x in narrow]
        return self._paired(eqn, values, narrow, stack)

    def _as_computed(self, eqn: Equation, values: Sequence[Value]) -> list[Leaf]:
        """The results of an equation as the program computes them."""
        as_if = self.formats.narrow
        is_own = eqn.primitive.name in primitives.OF_OWN_DTYPES
        # Nothing computes in 8 bits: results are rounded to them.
        if as_if is not None and (is_own or as_if.itemsize < 2):
            return [self._given(x, None).narrow for x in self._own(eqn, values)]
        operands = [v.narrow for v in values]
        if algorithm := self.formats.algorithm(eqn, is_wide=False):
            made = product(eqn, operands, algorithm)
        else:
            made = evaluate(eqn, operands, self.formats.written)
        return [*map(self._kept, made)]

    def _kept(self, x: Leaf) -> Leaf:
        """A result, so that XLA leaves out no rounding and does not reorder sums."""
        is_own = self.formats.is_own and is_inexact(x) and bits(x.dtype) < 32
        return lax.optimization_barrier(x) if is_own or self._rounds_to(x) else x

    def _rounds_to(self, made: Leaf) -> bool:
        """Whether a dtype is narrower than the wide one beside it."""
        return is_inexact(made) and self.formats.widened(made.dtype) != made.dtype

    def _own(
        self, eqn: Equation, values: Sequence[Value], wide: bool = False
    ) -> list[Leaf]:
        """The results of an equation in the dtypes that the program has, on either side."""
        operands = [
            v.narrow
            if v.wide is None
            else lax.convert_element_type(v.wide if wide else v.narrow, var.aval.dtype)
            for v, var in zip(values, eqn.invars)
        ]
        return evaluate(eqn, operands, own_dtype)

    def _as_written(self, eqn: Equation, values: Sequence[Value]) -> list[Value]:
        """The results of an equation without a wide form, on the inputs of either side."""
        self.unknown.add(eqn.primitive.name)
        wide = narrow = self._own(eqn, values)
        if eqn.primitive.name not in primitives.CALLBACKS and any(map(is_inexact, narrow)):
            wide = self._own(eqn, values, wide=True)
        beside = [self._given(x, None).wide for x in wide]
        return [self._given(n, None)._replace(wide=w) for n, w in zip(narrow, beside)]

    def _paired(
        self,
        eqn: Equation,
        values: Sequence[Value],
        narrow: Sequence[Leaf],
        stack: Stack,
    ) -> list[Value]:
        """The results of an equation without others inside it."""
        widened, name = self.formats.widened, eqn.primitive.name
        if algorithm := self.formats.algorithm(eqn, is_wide=False):
            return [Value(narrow[0], self._product(eqn, values, algorithm, stack))]
        operands = [v.narrow for v in values]
        if name == "convert_element_type" and kind(narrow[0].dtype) == "float":
            _, number = self._scalars.get(id(operands[0]), (None, 0.0))
            if float(np.asarray(number).astype(narrow[0].dtype)) != number:
                return [self._of_number(number, narrow[0], stack)]
        rounds = not primitives.moves(eqn, operands, narrow) and any(
            map(self._rounds_to, (*narrow, *operands))
        )
        is_correct = rounds and self._is_correct(eqn, (*narrow, *operands))
        try:
            exact = self._widened(eqn, [v.either for v in values], values, narrow, stack)
            from_narrow = [None] * len(exact) if is_correct else exact
            if rounds and not is_correct:
                inputs = [self._given(x, None).either for x in operands]
                from_narrow = self._widened(eqn, inputs, values, narrow, stack)
        except Exception:  # it does not take wider operands
            return self._as_written(eqn, values)
        results = []
        for n, w, o in zip(narrow, exact, from_narrow):
            if not is_inexact(n):
                results.append(Value(n))
                continue
            w = self._kept(lax.convert_element_type(w, widened(n.dtype)))
            if rounds:
                o = o if o is None else lax.convert_element_type(o, widened(n.dtype))
                w = self._rounded(self._numbered(eqn, n, stack), w, n, o, stack)
            results.append(Value(n, w))
        return results

    def _product(
        self, eqn: Equation, values: Sequence[Value], algorithm: Algorithm, stack: Stack
    ) -> Leaf:
        """The wide value of a product: if its line rounds, that is of rounded operands."""
        products, rounds = self.formats.products, None
        if products is not None and products.rounds(eqn):
            number = self._line(origin_of(stack) or NOWHERE)
            line = self.lines[number]
            line.products[key_of(stack)] = stack
            line.dtypes.add(str(algorithm.dtype))
            line.primitives.add(eqn.primitive.name)
            line.is_backward |= is_backward(stack)
            line.scopes[scope_of(stack)] = None
            rounds = self._does_round(number, stack)
        (made,) = product(eqn, [v.either for v in values], algorithm, rounds)
        return self._kept(made)

    def _is_correct(self, eqn: Equation, known: Sequence[Leaf]) -> bool:
        """Whether a result is that of the wide operation, rounded.

        It is if the wide format has twice its digits and two more, as float32 has for
        float16 and float64 for float32: then rounding to the wide format first changes
        nothing.

        Args:
            eqn: the equation.
            known: its result, and its operands.
        """
        if any(kind(x.dtype) != "float" for x in known):
            return False
        wide = {self.formats.widened(x.dtype) for x in known}
        return len(wide) == 1 and primitives.is_correct(eqn, known[0].dtype)

    def _widened(
        self,
        eqn: Equation,
        operands: list[Leaf],
        values: Sequence[Value],
        narrow: Sequence[Leaf],
        stack: Stack,
    ) -> list[Leaf]:
        """The results of an equation on wide operands, with the program's own choices."""
        name = eqn.primitive.name
        if name in primitives.SELECTS:  # the last operand tells which of the first to take
            operands[-1] = self._given(values[-1].narrow, None).either

        def number_of(var: Leaf, user: Equation) -> Leaf:
            self.numbers.next_equation()
            meant = self._meant_by(var.val, var.aval.dtype, (user, *stack))
            return var.val if meant is None else meant

        made = evaluate(eqn, operands, self.formats.widened, number_of)
        return ALIGNED[name](operands, made, narrow) if name in ALIGNED else made

    def _numbered(self, eqn: Equation, result: Leaf, stack: Stack) -> int:
        """The number of the line of an equation that rounds."""
        number = self._line(origin_of(stack) or NOWHERE, cast_of_ours(stack))
        line, name = self.lines[number], eqn.primitive.name
        line.dtypes.add(str(result.dtype))
        line.primitives.add(name)
        line.is_narrowed &= any(var.aval.dtype != result.dtype for var in eqn.outvars[:1])
        is_cast = name == "convert_element_type" and is_explicit(stack)
        line.only_casts &= is_cast and is_of_users(stack)
        line.is_backward |= is_backward(stack)
        line.scopes[scope_of(stack)] = None
        names = {outer.primitive.name for outer in stack[1:]}
        line.is_in_loop |= not names.isdisjoint(("scan", "while"))
        return number

    # What needs other rules

    def _linear_solve(self, eqn: Equation, values: list[Value], stack: Stack):
        sizes = eqn.params["const_lengths"]
        _, _, consts, _, given = split(values, *(size or 0 for size in sizes))
        return self._run(eqn.params["jaxprs"].solve, [*consts, *given], stack)

    def _reduce_precision(self, eqn: Equation, values: list[Value], stack: Stack):
        (value,) = values
        (narrow,) = evaluate(eqn, [value.narrow], self.formats.written)
        (rounded,) = evaluate(eqn, [value.wide], own_dtype)
        if self.formats.is_own:
            return [Value(narrow, rounded)]
        rounds = self._does_round(self._numbered(eqn, narrow, stack), stack)
        return [Value(narrow, lax.select(rounds, rounded, value.wide))]

    def _stochastic(self, eqn: Equation, values: list[Value], stack: Stack):
        """A stochastic rounding of dtypeguard, whose bits hold no wide value."""
        (made,) = self._own(eqn, values)
        if self.formats.is_own:
            return [Value(made, *self._own(eqn, values, wide=True))]
        value = next(v for v in values if v.wide is not None)
        given, narrow = self._given(value.narrow, None), self._given(made, None).narrow
        number = self._numbered(eqn, narrow, stack)
        wide = self._rounded(number, value.wide, narrow, given.wide, stack)
        return [Value(narrow, wide)]

    def _sort(self, eqn: Equation, values: list[Value], stack: Stack):
        wide = [v.wide for v in values if v.wide is not None]
        params = {k: eqn.params[k] for k in ("dimension", "is_stable", "num_keys")}
        made = iter(lax.sort([*(v.narrow for v in values), *wide], **params))
        narrow = [next(made) for _ in values]
        has_wide = [v.wide is not None for v in values]
        return [Value(n, next(made) if has else None) for n, has in zip(narrow, has_wide)]

    def _top_k(self, eqn: Equation, values: list[Value], stack: Stack):
        (value,) = values
        narrow, order = evaluate(eqn, [value.narrow], self.formats.written)
        if value.wide is None:
            return [Value(narrow), Value(order)]
        axis = eqn.params.get("axis", -1)
        return [Value(narrow, jnp.take_along_axis(value.wide, order, axis)), Value(order)]


_SPECIAL: dict[str, Function] = {
    "scan": Paired._scan,
    "while": Paired._while,
    "cond": Paired._cond,
    "shard_map": Paired._shard_map,
    "custom_linear_solve": Paired._linear_solve,
    "reduce_precision": Paired._reduce_precision,
    "sort": Paired._sort,
    "top_k": Paired._top_k,
}
