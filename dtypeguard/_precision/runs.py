"""Plain runs of a program: as written, in wide types, and with some lines wide.

Each makes its own decisions, so their distances are those that a user measures.
"""

import collections
import dataclasses
import functools
import math
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._costs.work import operations, repetitions
from .._leaves.compat import set_x64
from .._leaves.dtypes import bits
from .._leaves.public import public
from .._leaves.types import Equation, Jaxpr, Leaf
from .._lines.equations import (
    cast_of_ours,
    is_backward,
    is_explicit,
    is_following,
)
from .._paired.gradients import Key, key_of
from .._paired.measure import compiled, distance, size_of
from .._paired.pair import Paired
from .._paired.plain import IsWide, Plain
from .._paired.primitives import is_inexact
from .._program.graph import Stack, jaxprs_in, open_jaxpr
from .._source.origin import Origin

# An error above this may be that of an output that rounding alone decides.
_FAR = 0.05
# It does if wide types differ by this part of the error, or of the output. Other outputs
# differ by 2^-13 of the error at most, which is how much finer than float16 float32 is.
_LEAST_PART = 0.1
# From this share of outputs on that are lost to 0, it is tried to scale the loss, by these
# powers of two.
_LEAST_LOST = 0.001
_LEFT_AT_MOST = 0.5
_POWERS = (-16, -12, -8, -4, 4, 8, 12, 16, 20, 24)


@public
@dataclasses.dataclass(frozen=True)
class LineDecision:
    """A line that decides by floating numbers, and decides otherwise in wide types.

    Attributes:
        origin: the line; None if no line outside JAX leads to it.
        flipped: how many of its decisions are others in wide types.
        count: how many it makes: a mask of 32,768 elements is as many.
    """

    origin: Origin | None
    flipped: int
    count: int


class WideLines(NamedTuple):
    """A plain run with some lines wide.

    Attributes:
        error: that of its outputs.
        left: the share of the squared error as written that it leaves.
        price: the share of the operations of matrix products that it makes wide.
    """

    error: float
    left: float
    price: float


class Scaled(NamedTuple):
    """A plain run with the loss scaled, of which the gradients are divided in wide types.

    Attributes:
        scale: the factor, a power of two.
        error: that of its outputs.
        left: the share of the squared error as written that it leaves.
        dtype: the one whose range is too small without.
    """

    scale: float
    error: float
    left: float
    dtype: str


class Runs:
    """A program as written and in wide types.

    Attributes:
        by_output: the error of each floating output, relative to its norm in wide types.
        total: the root mean square of these.
        compiled: the same where XLA may leave out roundings, as it does by default.
        once: the same if the wide outputs are rounded once to the dtypes as written.
        written: the floating outputs as written.
        exact: those in wide types.
        lost: the share of the numbers in the outputs that are 0 as written and not in wide
            types.
        decisions: the lines whose decisions differ, those that differ most first.
        turns_differ: whether a loop turns another number of times.
        has_gradients: whether an output is a gradient in a narrow dtype.

    Args:
        program: a closed jaxpr.
        paired: the program with a wide value beside each, traced.
        arrays: its inputs.
    """

    def __init__(self, program: Jaxpr, paired: Paired, arrays: Sequence[Leaf]):
        self._program, self._paired, self._arrays = program, paired, [*arrays]
        self._as_given: list[Leaf] | None = None
        self._with_wide: dict[tuple[frozenset[int], bool], WideLines] = {}
        plain, wide = self._plain(False), self._plain(True)
        self.written, choices = self._run(plain)
        self.exact, others = self._run(wide)
        self._compiled = self._as_compiled()
        self._sizes = [size_of(x) or 1.0 for x in self.exact]
        self.leave_out(())
        self.turns_differ, self.decisions = _compared(plain, choices, others)
        self._as_written, self._wide = plain, wide
        self._work = self._widened_work(wide, is_any=True) or 1.0
        inside = open_jaxpr(program)
        floats = [var for var in inside.outvars if is_inexact(var.aval)]
        self._are_gradients = [_is_backward(inside, var) for var in floats]
        narrow = [bits(x.dtype) < 32 for x in self.written]
        self.has_gradients = any(map(operator.and_, narrow, self._are_gradients))

    def leave_out(self, numbers: Collection[int]) -> None:
        """Counts no error of these outputs from now on."""
        for number in numbers:
            self._sizes[number] = math.inf
        self.by_output = self._distances(self.written)
        self.total = self._mean(self.by_output)
        self.compiled = self._mean(self._distances(self._compiled))
        rounded = [e.astype(x.dtype) for x, e in zip(self.written, self.exact)]
        self.once = self._mean(self._distances(rounded))
        pairs = [*zip(self.written, self.exact, self._sizes)]
        counted = [(x, e) for x, e, size in pairs if size < math.inf]
        lost = sum(int(jnp.sum((x == 0) & (e != 0))) for x, e in counted)
        self.lost = lost / (sum(x.size for x, _ in counted) or 1)

    def vanishing(self) -> list[int]:
        """The outputs that rounding alone decides, on the wide side as well.

        What is 0 but for rounding, and what an optimizer makes of it, is another number in
        float64 than in float32, or in float64 of inputs that differ by a few roundings. An
        output that is lost may be as far off as written, but wide types agree on it.
        """
        far = [n for n, error in enumerate(self.by_output) if _FAR < error < math.inf]
        if not far:
            return []
        with set_x64(True):
            others = self._exact_otherwise()
            found = [(n, others[n], self.exact[n].astype(others[n].dtype)) for n in far]
            differ = [(n, distance(x, e), min(size_of(x), size_of(e))) for n, x, e in found]
        is_much = lambda n, off, size: off > _LEAST_PART * min(self.by_output[n], 1) * size
        return [n for n, off, size in differ if is_much(n, off, size)]

    def _exact_otherwise(self) -> list[Leaf]:
        """The floating outputs in wide types, with other roundings."""
        formats, arrays = self._paired.formats, self._arrays
        if formats.wide == np.float64:
            arrays = [rounded_otherwise(x, 2.0**-50) for x in arrays]
        formats = formats._replace(wide=np.dtype("float64"))
        return self._run(self._plain(True, formats=formats), arrays)[0]

    def flipped(self, rounding: float) -> float:
        """The share of the squared error that other decisions cause.

        Negative if they undo what rounding causes.

        Args:
            rounding: the error with the decisions as written.
        """
        is_known = math.isfinite(self.total) and math.isfinite(rounding) and self.total > 0
        return 1 - (rounding / self.total) ** 2 if self.decisions and is_known else 0.0

    def with_wide(self, lines: Iterable[int], keeps: bool) -> WideLines:
        """The program with some lines wide.

        Of a line inside of a package, that is all that the user's line calls there, which
        is given wide arrays.

        Args:
            lines: their numbers.
            keeps: whether what they make stays wide, and so what is made of it, up to an
                explicit cast; otherwise it is cast back where another line uses it.
        """
        origins = [line.origin for line in self._paired.lines]
        called = {n: x.users.place for n, x in enumerate(origins) if x and x.called_from}
        lines = [*lines]
        callers = {called[number] for number in lines if number in called}
        given_wide = frozenset(n for n, users in called.items() if users in callers)
        chosen = given_wide.union(lines)
        if (chosen, keeps) not in self._with_wide:
            made = self._with_lines(chosen, given_wide, keeps)
            self._with_wide[chosen, keeps] = made
        return self._with_wide[chosen, keeps]

    def _with_lines(
        self, chosen: frozenset[int], given_wide: frozenset[int], keeps: bool
    ) -> WideLines:
        def is_wide(stack: Stack, has_wide: bool) -> bool:
            if self._paired.number_of(stack) in chosen:
                return True
            if stack and stack[0].primitive.name == "add_any":  # of gradients
                return has_wide
            if not keeps or cast_of_ours(stack) is not None:
                return False
            is_conversion = stack and stack[0].primitive.name == "convert_element_type"
            return has_wide and not (is_conversion and self._is_narrowed(stack))

        def is_given_wide(stack: Stack) -> bool:
            return self._paired.number_of(stack) in given_wide

        plain = self._plain(is_wide, calls=self._calls, is_given_wide=is_given_wide)
        made = self._run(plain)[0]
        # A gradient comes back in the dtype of its argument.
        made = [
            x.astype(w.dtype) if g else x
            for x, w, g in zip(made, self.written, self._are_gradients)
        ]
        error = self._mean(self._distances(made))
        return WideLines(error, self.left(error), self._widened_work(plain) / self._work)

    def scaled(self) -> Scaled | None:
        """The loss scale that leaves the least error; None if none leaves half of it."""
        short = sorted(
            str(x) for x in self._as_written.backward if jnp.finfo(x).maxexp < 127
        )
        if not short or (self.lost < _LEAST_LOST and math.isfinite(self.total)):
            return None

        def is_wide(stack: Stack, has_wide: bool) -> bool:
            return is_backward(stack) or has_wide

        arrays, one = self._arrays, jnp.float32(1)
        run = compiled(jax.jit(self._plain(is_wide).run).lower(arrays, one))
        tried = []
        for power in _POWERS:
            made = self._floats(run(arrays, one * 2.0**power)[0])
            triples = zip(made, self.written, self._are_gradients)
            made = [x if g else x.astype(w.dtype) for x, w, g in triples]
            tried.append((self._mean(self._distances(made)), power))
        least = min(tried)[0]
        error, power = min(
            (each for each in tried if each[0] <= 1.1 * least), key=lambda x: abs(x[1])
        )
        left = self.left(error)
        return Scaled(2.0**power, error, left, short[0]) if left < _LEFT_AT_MOST else None

    def left(self, error: float) -> float:
        """The share of the squared error that an error is."""
        if not (self.total and math.isfinite(error)):
            return 1.0 if self.total else 0.0
        return 0.0 if math.isinf(self.total) else (error / self.total) ** 2

    def harm(self, equations: Collection[Key], narrow: np.dtype) -> float:
        """The error that it adds to the outputs as written if some equations are narrow.

        Args:
            equations: the identities of each, and of those around it.
            narrow: the dtype that they get.
        """
        own = self._paired.formats._replace(narrow=narrow, is_own=True)
        run = lambda is_wide: self._run(self._plain(is_wide, formats=own))[0]
        given = self._paired.formats.narrow is None
        if self._as_given is None:
            self._as_given = self.written if given else run(True)
        made = run(lambda stack, _: key_of(stack) not in equations)
        return self._mean(self._distances(made, self._as_given))

    @functools.cached_property
    def _calls(self) -> dict[Key, int]:
        """The calls that lead to the equations, which only lines that are wide ask for."""
        return self._as_written.calls()

    def _is_narrowed(self, stack: Stack) -> bool:
        """Whether the source asks for a narrow dtype at a conversion, whatever is given."""
        formats, dtype = self._paired.formats, stack[0].outvars[0].aval.dtype
        is_narrow = formats.widened(dtype) != formats.written(dtype)
        is_asked = is_explicit(stack) and not is_following(stack)
        return is_narrow and is_asked and not is_backward(stack)

    def _plain(self, is_wide: IsWide | bool, **options: Any) -> Plain:
        formats = options.pop("formats", self._paired.formats)
        return Plain(self._program, formats, self._paired.numbers, is_wide, **options)

    def _run(
        self, plain: Plain, arrays: Sequence[Leaf] | None = None
    ) -> tuple[list[Leaf], list[Leaf]]:
        """The floating outputs of a plain run, and its choices."""
        arrays = self._arrays if arrays is None else [*arrays]
        made, choices = compiled(jax.jit(plain.run).lower(arrays))(arrays)
        return self._floats(made), choices

    def _floats(self, made: Sequence[Leaf]) -> list[Leaf]:
        """The floating ones of the outputs."""
        avals = self._program.out_avals
        return [x for x, aval in zip(made, avals) if is_inexact(aval)]

    def _distances(
        self, made: Sequence[Leaf], beside: Sequence[Leaf] | None = None
    ) -> list[float]:
        """How far outputs are from those in wide types, or from others."""
        sizes = self._sizes
        if beside is not None:
            known = zip(beside, sizes)
            sizes = [math.inf if s == math.inf else size_of(x) or 1.0 for x, s in known]
        pairs = zip(made, self.exact if beside is None else beside, sizes)
        errors = [distance(x.astype(e.dtype), e) / size for x, e, size in pairs]
        return [error if math.isfinite(error) else math.inf for error in errors]

    def _mean(self, errors: Sequence[float]) -> float:
        known = [e for e, size in zip(errors, self._sizes) if size < math.inf]
        return float(np.sqrt(np.mean(np.square(known)))) if known else 0.0

    def _widened_work(self, plain: Plain, is_any: bool = False) -> float:
        """The operations of the products that a run has made wide, or of all of them."""
        return sum(
            operations(stack[0]) * repetitions(stack)
            for stack in plain.widened.values()
            if is_any or self._is_narrow(stack[0])
        )

    def _is_narrow(self, eqn: Equation) -> bool:
        """Whether a product is computed wider where its line is wide."""
        formats, dtypes = self._paired.formats, (v.aval.dtype for v in eqn.invars[:2])
        return any(formats.widened(x) != formats.written(x) for x in dtypes)

    def _as_compiled(self) -> list[Leaf]:
        """The floating outputs where XLA may leave out roundings."""
        return self._run(self._plain(False, is_strict=False))[0]


def rounded_otherwise(array: Leaf, part: float) -> Leaf:
    """An array of floats with this part of each number added or taken away, in float64."""
    if not is_inexact(array):
        return array
    wide = jnp.asarray(array, jnp.promote_types(array.dtype, np.float64))
    signs = np.where(np.arange(wide.size).reshape(wide.shape) % 3, 1, -1)
    return wide * (1 + signs * part)


def _is_backward(jaxpr: Jaxpr, var: Leaf) -> bool:
    """Whether the backward pass of a gradient makes a result."""
    for eqn in jaxpr.eqns:
        if var in eqn.outvars:
            inner = [open_jaxpr(x) for x in jaxprs_in(eqn.params)]
            if len(inner) == 1 and len(inner[0].outvars) == len(eqn.outvars):
                return _is_backward(inner[0], inner[0].outvars[eqn.outvars.index(var)])
            return is_backward((eqn,))
    return False


def _compared(
    plain: Plain, choices: Sequence[Leaf], others: Sequence[Leaf]
) -> tuple[bool, tuple[LineDecision, ...]]:
    """Whether turns of loops differ, and the lines whose decisions do."""
    flipped, counts = collections.Counter[Origin | None](), collections.Counter()
    turns_differ = False
    for decision, choice, other in zip(plain.decisions, choices, others):
        differ = int(jnp.sum(choice.astype(other.dtype) != other))
        if decision.is_turn:
            turns_differ |= differ > 0
            continue
        flipped[decision.origin] += differ
        counts[decision.origin] += choice.size
    lines = (LineDecision(x, n, counts[x]) for x, n in flipped.most_common() if n)
    return turns_differ, tuple(lines)
