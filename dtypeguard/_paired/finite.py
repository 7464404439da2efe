"""Where the values of a paired program stop being finite."""

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from .._leaves.types import Function, Leaf
from .._program.graph import Stack
from .._program.meshes import on_mesh
from .primitives import is_inexact
from .values import Value

# What a value has: an element that is not finite on the wide side, one there that is not a
# number, and one that is not finite as written alone. A value that is the first to be bad
# is new.
_BAD, _NAN, _LOST, _NEW = 1, 2, 4, 8


class Birth(NamedTuple):
    """What made a value that may not be finite.

    Attributes:
        number: of the input, if it is one.
        stack: the equation and those around it, inside out; empty for an input.
        dtype: that of the value as written.
    """

    number: int | None
    stack: Stack
    dtype: str


class Known(NamedTuple):
    """What is known of a value.

    Attributes:
        narrow: as the program computes it, whose identity is the value's.
        number: which value it is; None for a constant.
        code: what it has.
    """

    narrow: Leaf
    number: int | None
    code: Leaf


class Level:
    """The values of the program, or of a loop, a branch or a shard in it.

    Attributes:
        known: all that equations in there may use, by identity.
        made: those that are made in there.
        before: what the operands of each of these have.
        inner: the numbers and the flags of those that are made further inside.
    """

    def __init__(self, known: Mapping[int, Known]):
        self.known = dict(known)
        self.made: list[Known] = []
        self.before: list[list[Leaf]] = []
        self.inner: list[tuple[list[int], Leaf]] = []

    def numbers(self) -> list[int]:
        """The numbers of all that `flags` has."""
        made = [each.number for each in self.made if each.number is not None]
        return sum((numbers for numbers, _ in self.inner), made)

    def flags(self) -> Leaf:
        """What the values have, with the mark of those that are new."""
        codes = _stacked([each.code for each in self.made])
        pairs = [(n, code) for n, each in enumerate(self.before) for code in each]
        known = jnp.zeros((2, len(self.made)), jnp.int32)
        if pairs:
            places = np.array([n for n, _ in pairs], np.int32)
            before = _stacked([code for _, code in pairs])
            both = jnp.stack([before & _BAD, before & _NAN])
            known = known.at[:, places].max(both)
        is_new = (known[0] == 0) | ((known[1] == 0) & (codes & _NAN != 0))
        codes |= jnp.where(is_new & (codes & _BAD != 0), jnp.int32(_NEW), jnp.int32(0))
        return jnp.concatenate([codes, *(flags for _, flags in self.inner)])


class Finite:
    """Follows where values stop being finite while a paired program is traced.

    The program returns a table of flags of its values. With the operands of each, it tells
    afterwards what leads to an output that is not finite: the first equation whose result
    is not, though its operands are. What is infinite because a constant or an input is,
    such as a mask, counts as finite, and what is selected away is followed no further.

    Attributes:
        is_complete: whether the table of the last trace has all values.
        sizes: how many flags a loop or the branches return, by where they stand; they are
            known after one trace.
        places: how many of these the trace has seen.
        level: the values where the trace is.
    """

    def __init__(self):
        self.sizes: dict[int, int] = {}
        self.start()

    def start(self) -> None:
        """Begins a trace of the program."""
        self.is_complete, self.places = True, 0
        self._births: list[Birth | None] = []
        self._sources: list[list[int]] = []
        self.level = Level({})

    def constant(self, value: Value, array: Leaf) -> None:
        """Enters a constant of the program."""
        if value.wide is None:
            return
        if isinstance(array, Tracer):
            code = _code(Value(array))
        else:
            array = np.asarray(array)
            code = 0 if np.isfinite(array).all() else _BAD
            code |= _NAN if np.isnan(array).any() else 0
        self.level.known[id(value.narrow)] = Known(value.narrow, None, code)

    def follow(
        self,
        stack: Stack,
        operands: Sequence[Value],
        made: Value,
        number: int | None = None,
    ) -> None:
        """Enters what an equation makes, or an input."""
        # An infinite input is like an infinite constant.
        before = [] if number is None else [_BAD]
        self._enter(made, Birth(number, stack, str(made.narrow.dtype)), operands, before)

    def same(self, values: Sequence[Value], *sources: Sequence[Value]) -> None:
        """Enters values that come from others, across the boundary of a loop, say."""
        for value, *others in zip(values, *sources):
            self._enter(value, None, others, [_BAD | _NAN])

    def numbers(self, values: Iterable[Value]) -> list[int | None]:
        """The numbers of values."""
        nothing = Known(None, None, 0)
        return [self.level.known.get(id(v.narrow), nothing).number for v in values]

    def codes(self, values: Iterable[Value]) -> list[Leaf]:
        """What values have."""
        known = [self.level.known.get(id(v.narrow)) for v in values]
        return [each.code for each in known if each is not None]

    def join(self, numbers: Sequence[int | None], others: Sequence[int | None]) -> None:
        """Says of some values, by number, that they may be others as well."""
        for number, other in zip(numbers, others):
            if number is not None and other is not None:
                self._sources[number].append(other)

    def causes(
        self, outputs: Sequence[int | None], flags: Leaf
    ) -> tuple[list[Birth], list[Birth]]:
        """What makes outputs not finite as written alone, and on the wide side.

        Args:
            outputs: their numbers.
            flags: the table that the program returns.
        """
        table = dict(zip(self.level.numbers(), np.asarray(flags).tolist()))
        written, wide = (
            {self._first(number, table, *marks) for number in outputs if number is not None}
            for marks in ((_LOST, _LOST), (_BAD, _NEW))
        )
        numbers = (sorted(n for n in each if n is not None) for each in (written, wide))
        births = [[b for n in each if (b := self._births[n])] for each in numbers]
        return births[0], births[1]

    def _first(
        self, number: int, table: Mapping[int, int], bad: int, new: int
    ) -> int | None:
        """The first equation that leads to a value through bad ones, and is new."""
        seen, queue = {number}, [number]
        for each in queue:
            if not table.get(each, 0) & bad:
                continue
            more = set(self._sources[each]) - seen
            seen |= more
            queue.extend(more)
        is_first = lambda n: self._births[n] is not None and table.get(n, 0) & bad
        return min((n for n in queue if is_first(n) and table[n] & new), default=None)

    def _enter(
        self,
        value: Value,
        birth: Birth | None,
        operands: Iterable[Value],
        before: list[Leaf],
    ) -> None:
        known = self.level.known
        if not is_inexact(value.narrow) or id(value.narrow) in known:
            return
        operands = list(operands)
        entry = Known(value.narrow, len(self._births), _code(value))
        known[id(value.narrow)] = entry
        self._births.append(birth)
        self._sources.append([n for n in self.numbers(operands) if n is not None])
        self.level.made.append(entry)
        codes = [x for x in self.codes(operands) if isinstance(x, Tracer) or x]
        self.level.before.append(before or codes)


class Inside:
    """A loop, a branch or a shard, in which values have other tracers.

    Args:
        finite: what follows the values; None if nothing does.
        operands: what the equation is given.

    Attributes:
        none: flags that are not set, as many as there are as far as that is known.
    """

    def __init__(self, finite: Finite | None, operands: Sequence[Value]):
        self._finite = finite
        self.none: Leaf = None
        if finite is not None:
            self._place = finite.places = finite.places + 1
            # On one device of several, flags vary where the operands do.
            codes = [x & 0 for x in finite.codes(operands) if isinstance(x, Tracer)]
            none = jnp.zeros(finite.sizes.get(self._place, 0), jnp.int32)
            self.none = functools.reduce(lax.bitwise_or, codes, none)

    def run(
        self, function: Function, given: Sequence[Value], outside: Sequence[Value]
    ) -> tuple[list[Value], Leaf]:
        """What a function makes of values, and the flags of all that it computes.

        Args:
            function: what is inside.
            given: the values in there.
            outside: what they are outside.
        """
        finite = self._finite
        if finite is None:
            return function(given), None
        outer, finite.level = finite.level, Level(finite.level.known)
        try:
            finite.same(given, outside)
            self._entered = finite.numbers(given)
            made = function(given)
            self._made = finite.numbers(made)
            self._numbers = finite.level.numbers()
            return made, finite.level.flags()
        finally:
            finite.level = outer

    def fitted(self, flags: Leaf) -> Leaf:
        """Flags in an array like `none`."""
        is_known = flags is not None and len(flags) == len(self.none)
        return self.none | flags if is_known else self.none

    def leave(
        self, flags: Leaf, made: Sequence[Value], start: Sequence[Value] = ()
    ) -> Sequence[Value]:
        """What the equation returns, with what it comes from.

        Args:
            flags: those of all that is inside.
            made: what the equation returns.
            start: what a loop begins with.
        """
        finite = self._finite
        if finite is not None:
            count = len(self._numbers)
            if len(flags) != count:
                finite.is_complete = False
                finite.sizes[self._place], flags = count, jnp.zeros(count, jnp.int32)
            finite.level.inner.append((self._numbers, flags))
            finite.same(made)
            finite.join(finite.numbers(made), self._made)
            finite.join(finite.numbers(made), finite.numbers(start))
            finite.join(self._entered[: len(start)], self._made)
        return made


def any_along(flags: Leaf) -> Leaf:
    """The flags of all steps of a loop."""
    return None if flags is None else _joined(_bits(flags).max(0))


def any_across(flags: Leaf, axes: Collection[str]) -> Leaf:
    """The flags of all devices along some axes of a mesh."""
    return None if flags is None else _joined(lax.pmax(_bits(flags), tuple(axes)))


def _bits(flags: Leaf) -> Leaf:
    return flags[..., None] >> _PLACES & 1


def _joined(bits: Leaf) -> Leaf:
    return jnp.sum(bits << _PLACES, -1, dtype=jnp.int32)


_PLACES = np.arange(4, dtype=np.int32)


def _code(value: Value) -> Leaf:
    """What a value has."""
    wide = value.either
    code = jnp.where(jnp.isfinite(wide), jnp.int32(0), jnp.int32(_BAD))
    code = jnp.where(jnp.isnan(wide), jnp.int32(_BAD | _NAN), code).max(initial=0)
    if value.wide is None:
        return code
    is_lost = jnp.isfinite(wide) & ~jnp.isfinite(value.narrow.astype(wide.dtype))
    return code | jnp.where(is_lost.any(), jnp.int32(_LOST), jnp.int32(0))


def _stacked(codes: Sequence[Leaf]) -> Leaf:
    arrays = [on_mesh(jnp.asarray(code, jnp.int32)) for code in codes]
    return jnp.stack(arrays) if arrays else jnp.zeros(0, jnp.int32)
