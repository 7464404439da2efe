"""A program with a wide value beside every value that it computes."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.casts import Cast
from .._leaves.dtypes import kind
from .._leaves.types import Aval, DType, Equation, Function, Jaxpr, Leaf
from .._program.expand import expanded
from .._program.graph import SHAPES, Stack, loop_parts, open_jaxpr
from .._program.origins import Origin, cast_of_ours, origin_of
from .algebra import ALIGNED
from .finite import Finite
from .meant import Meant


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


# These return some of the numbers that they are given, and round none of them.
_MOVES = SHAPES | _words(
    "dynamic_slice gather concatenate pad select_n neg max min reduce_max reduce_min clamp "
    "split dynamic_update_slice real imag reduce_window_max reduce_window_min cummax "
    "cummin all_gather all_to_all ppermute pmax pmin pvary pcast pbroadcast floor ceil "
    "round select_if_vmap maybe_set nonbatchable"  # the last three are Equinox's
)
_MOVE_REALS = _words("abs sign")
# XLA rounds these correctly on CPU (checked with JAX 0.10.2): what the program computes is
# the exact result, rounded. On an accelerator the last two may be approximate.
_CORRECT = _words("add add_any sub mul square convert_element_type")
_CORRECT_ON_CPU = _words("div sqrt")

# The function of `_rounding` that rounds stochastically; `jit` keeps its name.
_STOCHASTIC = "round_with"
# The parts of trees whose casts by dtypeguard count as lines of their own.
_MOST_CASTS = 32


class Value(NamedTuple):
    """A value of the program.

    Attributes:
        narrow: as the program computes it.
        wide: the wide value beside it; None where it is no float.
        cause: see `Finite`; None where that is not looked for.
    """

    narrow: Leaf
    wide: Leaf = None
    cause: Leaf = None

    @property
    def either(self) -> Leaf:
        """The wide value if there is one."""
        return self.narrow if self.wide is None else self.wide


class Formats(NamedTuple):
    """The dtypes of a paired program.

    Attributes:
        wide: the dtype of the wide values, at least.
        narrow: if given, the program is run as if all floats were at most this wide.
    """

    wide: np.dtype
    narrow: np.dtype | None = None

    @property
    def names(self) -> dict[str, Any]:
        """Their names, as reports have them."""
        narrow = None if self.narrow is None else str(self.narrow)
        return {"wide": str(self.wide), "narrow": narrow}

    def written(self, dtype: DType) -> DType:
        """The dtype in which the program computes a value."""
        if self.narrow is None or kind(dtype) != "float":
            return dtype
        return min(self.narrow, dtype, key=lambda each: each.itemsize)

    def widened(self, dtype: DType) -> DType:
        """The dtype of the wide value beside it."""
        if kind(dtype) == "float" and dtype.itemsize < self.wide.itemsize:
            return self.wide
        is_double = self.wide == np.float64 and kind(dtype) == "complex"
        return np.dtype("complex128") if is_double else dtype


class Line:
    """A line of source that rounds.

    Attributes:
        origin: where it is; None for the inputs of the program, which `narrow` rounds, and
            without a file for what JAX computes with no line of the user's around it.
        dtypes: the dtypes in which it computes.
        primitives: what it computes.
        constants: the numbers that were rounded when the program was traced, with what
            became of them.
        casts: the casts of dtypeguard that it stands for, if it is none of the user's.
        is_in_loop: whether a loop computes it.
    """

    def __init__(self, origin: Origin | None):
        self.origin = origin
        self.casts: dict[Cast, None] = {}
        self.dtypes: set[str] = set()
        self.primitives: set[str] = set()
        self.constants: dict[float, float] = {}
        self.is_in_loop = False


class Paired:
    """A program that computes a wide value beside each of its own.

    The wide value of an equation `y = op(x)` is `op_wide(w_x)`. If its line rounds, that is
    rounded to the dtype of the program. With no line rounding, the wide values are those of
    the program in wide types; with all lines rounding, those of the program as written.

    Attributes:
        lines: the lines that can round, numbered. Complete after one trace.
        constants: the lines and numbers that a trace rounds there; each has a switch.
        unknown: the primitives that are run as written, since they have no wide form here.

    Args:
        closed_jaxpr: the program.
        formats: its dtypes.
        meant: the Python numbers that were given to JAX when the program was traced.
    """

    def __init__(self, closed_jaxpr: Jaxpr, formats: Formats, meant: Meant):
        self.lines: list[Line] = []
        self.constants: list[tuple[int, float]] = []
        self.unknown: set[str] = set()
        self._program = closed_jaxpr
        self._formats = formats
        self._meant = meant
        self._numbers: dict[tuple[object, ...] | None, int] = {}
        self._rounds: list[Leaf] = []
        self._finite: Finite | None = None
        if formats.narrow is not None:
            self._line(None)

    def __call__(
        self, amounts: Leaf, arrays: Sequence[Leaf], finite: Finite | None = None
    ) -> list[Value]:
        """Runs the program.

        Args:
            amounts: a vector with 1 for each of `lines` that rounds, and from its end for
                each of `constants`; 0 elsewhere.
            arrays: the inputs.
            finite: if given, it follows where values stop being finite.
        """
        self._meant.start_again()
        self._finite = finite
        rounds = amounts > 0
        at = lambda number: lax.index_in_dim(rounds, number, keepdims=False)
        self._rounds = [at(number) for number in range(amounts.shape[0])]
        try:
            with np.errstate(over="ignore"):  # NumPy warns of constants: -1e9 in float16
                given = [self._given(x, self._numbers.get(None)) for x in arrays]
                given = [self._followed((), [], v, n) for n, v in enumerate(given)]
                return self._run(self._program, given, ())
        finally:  # no tracer outlives its trace
            self._rounds, self._finite = [], None

    # Lines

    def _line(self, origin: Origin | None, cast: Cast | None = None) -> int:
        key = None if origin is None else (origin.file, origin.line)
        if cast is not None:
            # Each part of a tree by itself, but of many all others together.
            key = (key, cast.owner, cast.part)
            is_full = sum(bool(line.casts) for line in self.lines) >= _MOST_CASTS
            key = key if key in self._numbers or not is_full else (*key[:2], "")
        if key not in self._numbers:
            self._numbers[key] = len(self.lines)
            self.lines.append(Line(origin))
        if cast is not None:
            self.lines[self._numbers[key]].casts[cast] = None
        return self._numbers[key]

    def _rounded(
        self, number: int, exact: Leaf, narrow: Leaf, from_narrow: Leaf | None
    ) -> Leaf:
        """The wide value of a result: `exact`, or rounded if its line rounds.

        Args:
            number: of the line.
            exact: the wide result.
            narrow: the program's.
            from_narrow: the wide result of the program's operands; None if it is known to
                be the program's result before rounding.
        """
        if from_narrow is None:
            rounded = _round(exact, narrow.dtype)
            return lax.select(self._does_round(number), rounded, exact)
        rounded, as_narrow = (_round(x, narrow.dtype) for x in (exact, from_narrow))
        given = lax.convert_element_type(narrow, exact.dtype)
        # The program may do more than round: bfloat16 sums, for example. That is added, but
        # for the sign's sake no more than half of the value: a variance stays positive.
        # What an earlier line has lost is not this one's to add.
        more = lax.sub(given, as_narrow)
        more = lax.select(jnp.isfinite(more), more, lax.full_like(given, 0))
        if exact.dtype.kind != "c":
            half = lax.mul(lax.abs(rounded), lax.full_like(rounded, 0.5))
            more = lax.clamp(lax.neg(half), more, half)
        is_same = lax.eq(rounded, as_narrow)
        rounded = lax.select(is_same, given, lax.add(rounded, more))
        return lax.select(self._does_round(number), rounded, exact)

    def _does_round(self, number: int) -> Leaf:
        # A trace that finds too many lines is made once more.
        return self._rounds[number if abs(number) < len(self._rounds) else 0]

    # Values

    def _given(self, array: Leaf, number: int | None) -> Value:
        """An input or a constant of the program, which `narrow` may round."""
        array = jnp.asarray(array) if not hasattr(array, "dtype") else array
        dtype = array.dtype
        if kind(dtype) not in ("float", "complex"):
            return Value(array)
        wide = lax.convert_element_type(array, self._formats.widened(dtype))
        narrow = lax.convert_element_type(array, self._formats.written(dtype))
        if number is not None and narrow.dtype != dtype:
            self.lines[number].dtypes.add(str(narrow.dtype))
            wide = self._rounded(number, wide, narrow, wide)
        return Value(narrow, wide)

    def _literal(self, var: Leaf, stack: Sequence[Equation]) -> Value:
        """A number that stands in an equation, with the number that was meant."""
        value = self._given(jnp.asarray(var.val, var.aval.dtype), None)
        origin = origin_of(stack)
        is_float = kind(value.narrow.dtype) == "float" and not np.ndim(var.val)
        if origin is None or not is_float:
            return value
        meant = self._meant.next_number(origin, var.val, value.narrow.dtype)
        if meant is None:
            return value
        number = self._line(origin)
        self.lines[number].dtypes.add(str(value.narrow.dtype))
        rounded = np.asarray(var.val).astype(value.narrow.dtype)
        self.lines[number].constants[meant] = float(rounded)
        if (number, meant) not in self.constants:
            self.constants.append((number, meant))
        switch = -1 - self.constants.index((number, meant))
        exact = jnp.asarray(meant, value.wide.dtype)
        return Value(value.narrow, self._rounded(switch, exact, value.narrow, exact))

    # Equations

    def _run(
        self, jaxpr: Jaxpr, given: Sequence[Value], outer: Sequence[Equation]
    ) -> list[Value]:
        """Runs a jaxpr, closed or open, that stands inside some equations."""
        consts = [self._given(x, None) for x in getattr(jaxpr, "consts", ())]
        consts = [self._constant(value) for value in consts]
        jaxpr = open_jaxpr(jaxpr)
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *given)))

        def read(var: Leaf, *stack: Equation) -> Value:
            is_number = hasattr(var, "val")
            return self._constant(self._literal(var, stack)) if is_number else known[var]

        for eqn in jaxpr.eqns:
            stack = (eqn, *outer)
            values = [read(var, *stack) for var in eqn.invars]
            made = self._equation(eqn, values, stack)
            known |= zip(eqn.outvars, [self._followed(stack, values, v) for v in made])
        return [read(var, *outer) for var in jaxpr.outvars]

    def _constant(self, value: Value) -> Value:
        """A constant, which may be infinite: masks are."""
        if self._finite is None or value.wide is None:
            return value
        return value._replace(cause=self._finite.none())

    def _followed(
        self, stack: Stack, given: Sequence[Value], made: Value, number: int | None = None
    ) -> Value:
        """A value with the place where it, or what it is made of, stopped being finite."""
        if self._finite is None or made.wide is None or made.cause is not None:
            return made
        known = [(v.wide, v.cause) for v in given if v.cause is not None]
        return made._replace(cause=self._finite.cause(number, stack, known, *made[:2]))

    def _equation(
        self, eqn: Equation, values: list[Value], stack: Sequence[Equation]
    ) -> Sequence[Value]:
        name = eqn.primitive.name
        if any(hasattr(var.aval, "inner_aval") for var in (*eqn.invars, *eqn.outvars)):
            raise TypeError(
                "audit_precision does not run programs with mutable references "
                f"({name}): give it a function that returns new arrays."
            )
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, eqn, values, stack)
        inside = expanded(eqn)
        if inside is not None:
            return self._run(inside, values, stack)
        jaxprs = jaxprs_in(eqn.params)
        has_wide = any(v.wide is not None for v in values)
        if has_wide and eqn.params.get("name") == _STOCHASTIC and len(eqn.outvars) == 1:
            return self._stochastic(eqn, values, stack)
        if name in _CALLS and len(jaxprs) == 1:
            return self._run(jaxprs[0], values, stack)
        if name in _DEBUG:
            return []
        has_key = any(_is_key(v.narrow) for v in values)
        is_drawn = has_key and any(is_inexact(var.aval) for var in eqn.outvars)
        if (jaxprs and name not in COMBINES) or name in _AS_WRITTEN or is_drawn:
            return self._as_written(eqn, values)
        if name in _OF_BITS:
            if has_wide:
                self.unknown.add(name)
            return [self._given(x, None) for x in self._own(eqn, values)]
        as_if = self._formats.narrow
        # Nothing computes in 8 bits: results are rounded to them.
        if as_if is not None and (name in _OF_OWN_DTYPES or as_if.itemsize < 2):
            narrow = [self._given(x, None).narrow for x in self._own(eqn, values)]
        else:
            narrow = self._bind(eqn, [v.narrow for v in values], self._formats.written)
        if not any(map(is_inexact, narrow)):
            return [Value(x) for x in narrow]
        return self._paired(eqn, values, narrow, stack)

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
        return self._bind(eqn, operands, own_dtype)

    def _as_written(self, eqn: Equation, values: Sequence[Value]) -> list[Value]:
        """The results of an equation without a wide form, on the inputs of either side."""
        self.unknown.add(eqn.primitive.name)
        wide = narrow = self._own(eqn, values)
        if eqn.primitive.name not in _CALLBACKS and any(map(is_inexact, narrow)):
            wide = self._own(eqn, values, wide=True)
        beside = [self._given(x, None).wide for x in wide]
        return [self._given(n, None)._replace(wide=w) for n, w in zip(narrow, beside)]

    def _paired(
        self,
        eqn: Equation,
        values: Sequence[Value],
        narrow: Sequence[Leaf],
        stack: Sequence[Equation],
    ) -> list[Value]:
        """The results of an equation without others inside it."""
        widened = self._formats.widened
        known = (*narrow, *(v.narrow for v in values))
        rounds = not _moves(eqn, values, narrow) and any(
            is_inexact(x) and widened(x.dtype) != x.dtype for x in known
        )
        is_correct = rounds and self._is_correct(eqn, values, narrow[0])
        try:
            exact = self._widened(eqn, [v.either for v in values], values, narrow)
            from_narrow = [None] * len(exact) if is_correct else exact
            if rounds and not is_correct:
                inputs = [self._given(v.narrow, None).either for v in values]
                from_narrow = self._widened(eqn, inputs, values, narrow)
        except Exception:  # it does not take wider operands
            return self._as_written(eqn, values)
        results = []
        for n, w, o in zip(narrow, exact, from_narrow):
            if not is_inexact(n):
                results.append(Value(n))
                continue
            w = lax.convert_element_type(w, widened(n.dtype))
            if rounds:
                o = o if o is None else lax.convert_element_type(o, widened(n.dtype))
                w = self._rounded(self._numbered(eqn, n, stack), w, n, o)
            results.append(Value(n, w))
        return results

    def _is_correct(self, eqn: Equation, values: Sequence[Value], made: Leaf) -> bool:
        """Whether a result is that of the wide operation, rounded.

        It is if the wide format has twice its digits and two more, as float32 has for
        float16 and float64 for float32: then rounding to the wide format first changes
        nothing.
        """
        is_square = eqn.primitive.name == "integer_pow" and eqn.params["y"] == 2
        correct = _CORRECT
        if jax.default_backend() == "cpu":
            correct |= _CORRECT_ON_CPU
        if not (is_square or eqn.primitive.name in correct):
            return False
        dtypes = [made.dtype, *(v.narrow.dtype for v in values)]
        if any(kind(dtype) != "float" for dtype in dtypes):
            return False
        return len({self._formats.widened(dtype) for dtype in dtypes}) == 1

    def _widened(
        self,
        eqn: Equation,
        operands: list[Leaf],
        values: Sequence[Value],
        narrow: Sequence[Leaf],
    ) -> list[Leaf]:
        """The results of an equation on wide operands, with the program's own choices."""
        name = eqn.primitive.name
        if name in _SELECTS:  # the last operand tells which elements of the first to take
            operands[-1] = self._given(values[-1].narrow, None).either
        made = self._bind(eqn, operands, self._formats.widened)
        return ALIGNED[name](operands, made, narrow) if name in ALIGNED else made

    def _numbered(self, eqn: Equation, result: Leaf, stack: Sequence[Equation]) -> int:
        """The number of the line of an equation that rounds."""
        number = self._line(origin_of(stack) or _NOWHERE, cast_of_ours(stack))
        self.lines[number].dtypes.add(str(result.dtype))
        self.lines[number].primitives.add(eqn.primitive.name)
        names = {outer.primitive.name for outer in stack[1:]}
        self.lines[number].is_in_loop |= not names.isdisjoint(("scan", "while"))
        return number

    def _bind(
        self, eqn: Equation, operands: Sequence[Leaf], dtype_of: Callable[[DType], DType]
    ) -> list[Leaf]:
        """Evaluates an equation on operands of other dtypes."""
        params = {k: self._param(k, x, dtype_of) for k, x in eqn.params.items()}
        if eqn.primitive.name == "convert_element_type":
            params["weak_type"] = False
        bound = eqn.primitive.get_bind_params(params)
        functions, params = bound if isinstance(bound, tuple) else ((), bound)
        made = eqn.primitive.bind(*functions, *operands, **params)
        made = made if eqn.primitive.multiple_results else [made]
        if dtype_of == self._formats.written:
            # XLA may leave out a rounding that is undone at once, or reorder sums.
            made = [_kept(x, self._formats) for x in made]
        return made

    def _param(self, name: str, value: Leaf, dtype_of: Callable[[DType], DType]) -> object:
        if isinstance(value, np.dtype) or name in _DTYPES:
            return value if value is None else dtype_of(jnp.dtype(value))
        inside = open_jaxpr(value)
        if hasattr(inside, "eqns") and dtype_of is not own_dtype:
            # How two numbers are combined.
            avals = [
                jax.ShapeDtypeStruct(v.aval.shape, dtype_of(v.aval.dtype))
                for v in inside.invars
            ]
            function = functools.partial(self._plain, inside, dtype_of)
            made = jax.make_jaxpr(function)(*avals)
            return made.jaxpr if inside is value else made
        return value

    def _plain(self, jaxpr: Jaxpr, dtype_of: Callable[[DType], DType], *operands: Leaf):
        """Evaluates a jaxpr without constants in other dtypes: what a scatter adds by."""
        known = dict(zip(jaxpr.invars, operands))

        def read(var: Leaf) -> Leaf:
            if hasattr(var, "val"):
                return jnp.asarray(var.val, dtype_of(var.aval.dtype))
            return known[var]

        for eqn in jaxpr.eqns:
            made = self._bind(eqn, [read(var) for var in eqn.invars], dtype_of)
            known |= zip(eqn.outvars, made)
        return [read(var) for var in jaxpr.outvars]

    # Control flow

    def _scan(self, eqn: Equation, values: list[Value], stack: Sequence[Equation]):
        body, _, consts, count = loop_parts(eqn)
        outside, carry, xs = _split(values, consts, count)

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
        before, outside, carry = _split(values, of_condition, consts)

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

    def _linear_solve(self, eqn: Equation, values: list[Value], stack: Sequence[Equation]):
        sizes = eqn.params["const_lengths"]
        _, _, consts, _, given = _split(values, *(size or 0 for size in sizes))
        return self._run(eqn.params["jaxprs"].solve, [*consts, *given], stack)

    def _reduce_precision(
        self, eqn: Equation, values: list[Value], stack: Sequence[Equation]
    ):
        (value,) = values
        (narrow,) = self._bind(eqn, [value.narrow], self._formats.written)
        (rounded,) = self._bind(eqn, [value.wide], own_dtype)
        rounds = self._does_round(self._numbered(eqn, narrow, stack))
        return [Value(narrow, lax.select(rounds, rounded, value.wide))]

    def _stochastic(self, eqn: Equation, values: list[Value], stack: Sequence[Equation]):
        """A stochastic rounding of dtypeguard, whose bits hold no wide value."""
        (made,) = self._own(eqn, values)
        value = next(v for v in values if v.wide is not None)
        given, narrow = self._given(value.narrow, None), self._given(made, None).narrow
        number = self._numbered(eqn, narrow, stack)
        return [Value(narrow, self._rounded(number, value.wide, narrow, given.wide))]

    def _sort(self, eqn: Equation, values: list[Value], stack: Sequence[Equation]):
        wide = [v.wide for v in values if v.wide is not None]
        params = {k: eqn.params[k] for k in ("dimension", "is_stable", "num_keys")}
        made = iter(lax.sort([*(v.narrow for v in values), *wide], **params))
        narrow = [next(made) for _ in values]
        has_wide = [v.wide is not None for v in values]
        return [Value(n, next(made) if has else None) for n, has in zip(narrow, has_wide)]

    def _top_k(self, eqn: Equation, values: list[Value], stack: Sequence[Equation]):
        (value,) = values
        narrow, order = self._bind(eqn, [value.narrow], self._formats.written)
        if value.wide is None:
            return [Value(narrow), Value(order)]
        axis = eqn.params.get("axis", -1)
        return [Value(narrow, jnp.take_along_axis(value.wide, order, axis)), Value(order)]


_NOWHERE = Origin("", 0, "", "")
# Their jaxprs are run as if they stood where the call does.
_CALLS = _words(
    "jit pjit closed_call core_call named_call checkpoint remat remat2 custom_jvp_call "
    "custom_vjp_call custom_vjp_call_jaxpr custom_lin eval_jaxpr"
)
# Their jaxprs say how two numbers are combined.
COMBINES = _words(
    "reduce reduce_window scatter scatter-add scatter_add scatter-mul scatter_mul "
    "scatter-min scatter_min scatter-max scatter_max scatter-sub scatter_sub"
)
_CALLBACKS = _words("pure_callback io_callback")
_DEBUG = _words("debug_callback debug_print")
# Other orders come out of these in another dtype, or they take no other.
_AS_WRITTEN = _CALLBACKS | _words("eig schur geqp3 rng_uniform ffi_call call_hi_primitive")
# These take no dtype below float32.
_OF_OWN_DTYPES = _words(
    "cholesky triangular_solve fft eigh svd qr lu geqrf householder_product hessenberg "
    "tridiagonal tridiagonal_solve complex"
)
_SELECTS = _words("select_and_scatter_add select_and_gather_add")
_OF_BITS = _words("bitcast_convert_type random_bits rng_bit_generator")
_DTYPES = ("new_dtype", "preferred_element_type", "dtype")
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


def is_inexact(value: Aval) -> bool:
    """Whether a value is floating or complex."""
    return kind(getattr(value, "dtype", None)) in ("float", "complex")


def _moves(eqn: Equation, values: Sequence[Value], made: Sequence[Leaf]) -> bool:
    """Whether an equation returns some of the numbers that it is given, or exact ones."""
    name = eqn.primitive.name
    if name in _MOVE_REALS:
        return kind(values[0].narrow.dtype) != "complex"
    if name == "scatter":  # what `x.at[i].apply` computes stands in its jaxpr
        return not any(open_jaxpr(each).eqns for each in jaxprs_in(eqn.params))
    if name == "convert_element_type":
        return is_inexact(values[0].narrow) and _holds(made[0], values[0].narrow)
    return name in _MOVES


def _holds(wide: Leaf, narrow: Leaf) -> bool:
    """Whether a floating dtype has each number of another."""
    wide, narrow = (jnp.finfo(x.dtype) for x in (wide, narrow))
    return (
        wide.nmant >= narrow.nmant
        and wide.maxexp >= narrow.maxexp
        and wide.minexp <= narrow.minexp
    )


def own_dtype(dtype: DType) -> DType:
    return dtype


def _is_key(value: Leaf) -> bool:
    return jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key)


def _kept(array: Leaf, formats: Formats) -> Leaf:
    is_rounded = is_inexact(array) and formats.widened(array.dtype) != array.dtype
    return lax.optimization_barrier(array) if is_rounded else array


def _round(array: Leaf, dtype: DType) -> Leaf:
    """A wide array rounded to a narrow dtype."""
    if array.dtype == dtype:
        return array
    if dtype == jnp.bfloat16 and array.dtype == np.float32:  # they have the same range
        return lax.reduce_precision(array, 8, 7)
    narrow = lax.optimization_barrier(lax.convert_element_type(array, dtype))
    return lax.convert_element_type(narrow, array.dtype)


def jaxprs_in(params: object) -> list[Jaxpr]:
    """The jaxprs among the parameters of an equation, also in tuples."""
    if hasattr(open_jaxpr(params), "eqns"):
        return [params]
    if isinstance(params, dict):
        params = list(params.values())
    values = params if isinstance(params, (tuple, list)) else ()
    return [jaxpr for value in values for jaxpr in jaxprs_in(value)]


def _split(values: list[Value], *sizes: int) -> Iterator[list[Value]]:
    """Lists of these sizes, and one of the rest."""
    for size in sizes:
        yield values[:size]
        values = values[size:]
    yield values
