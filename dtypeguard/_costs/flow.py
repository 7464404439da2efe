"""What makes each value of a program wide: sources, pushed forward through its graph.

Over 300 lines, since all rules are about the same few states of a value.
"""

import dataclasses
import enum
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .._leaves.dtypes import bits, is_weak
from .._leaves.types import Equation as JaxEquation
from .._lines.equations import Written
from .._numbers.lines import NOWHERE
from .._program.graph import PRODUCTS, SHAPES, Equation, Graph, Stack
from .._source.origin import Origin
from .work import equations, operations, repetitions

_Key = tuple[str, int, str, int]
# A line, and a value or a shape.
_Place = tuple[_Key | None, int | tuple[int, ...]]


class _State(enum.IntEnum):
    """What a wide value is made of."""

    UNKNOWN = 0  # not looked at yet, or no float
    NARROW = 1  # a narrow value, or a wide copy that JAX made for another operand's sake
    CONSTANT = 2  # a literal or so, which takes the dtype of what is next to it
    PURE = 3  # nothing narrow
    MIXED = 4  # something narrow as well, which a source made wide


@dataclasses.dataclass(eq=False)
class Source:
    """A line or an input that makes values wide.

    Attributes:
        number: its place among the sources.
        key: its name in any program of the same function.
        cause: the line that makes the wide values, or the argument that holds them.
        is_cast: whether it is an explicit cast of narrow values.
        is_policy: whether that is a cast of dtypeguard's, which a policy asks for.
        is_number: whether it is a scalar constant.
        is_array: whether it is an array that the function closes over.
        is_product: whether it is a product that is delivered wide.
        is_of_jax: whether a function of `jax.nn` makes them, which narrows them again.
        entered: the equations, by identity, at which it makes narrow values wide.
        stacks: its own equations, by identity, with those around them.
    """

    number: int
    key: object
    cause: Origin | str
    is_cast: bool = False
    is_policy: bool = False
    is_number: bool = False
    is_array: bool = False
    is_product: bool = False
    is_of_jax: bool = False
    entered: dict[int, Equation] = dataclasses.field(default_factory=dict)
    stacks: dict[int, Stack] = dataclasses.field(default_factory=dict)

    @property
    def bit(self) -> int:
        """The mask of this source alone."""
        return 1 << self.number


class Input(NamedTuple):
    """The names of an input of a program.

    Attributes:
        argument: that which holds it.
        path: its own.
    """

    argument: str
    path: str


class Flow:
    """What makes each value of a program wide.

    Wide values that depend on nothing narrow have one source: the last line that joined
    such values, since a cast there is enough. Where they meet narrow values, these become
    wide. From there on a value has all sources that would have to be narrow for it to be
    so. Equations of a backward pass have the sources of the forward one that they belong
    to: a gradient has the dtype of its value.

    An argument that is all wide is one source; of another, each wide leaf is one.

    Attributes:
        narrow: the dtype that the program is expected to compute in.
        sources: what makes values wide.
        work: the operations of matrix products and convolutions, by what makes them wide:
            the numbers of these sources, as the bits of an integer.
        inputs: the names of its inputs.
        has_followers: whether it has casts to the dtypes of other values.
        named: the inputs that are to be named for a source, if that is known.

    Args:
        graph: the program.
        narrow: the dtype that it is expected to compute in.
        inputs: the names of its inputs.
    """

    def __init__(self, graph: Graph, narrow: np.dtype, inputs: Sequence[Input]):
        self.narrow = narrow
        self.inputs = inputs
        self._graph = graph
        self.sources: list[Source] = []
        self._known: dict[tuple[_Key, bool] | str, Source] = {}
        count = len(graph.avals)
        sizes = [bits(getattr(aval, "dtype", None)) for aval in graph.avals]
        self._order = graph.sources_first()
        self._is_float = [size > 0 for size in sizes]
        self._is_wide = [size > bits(narrow) for size in sizes]
        self._state = [
            _State.NARROW if size and not wide else _State.UNKNOWN
            for size, wide in zip(sizes, self._is_wide)
        ]
        self._mask = [0] * count
        self._leaves = 0  # the mask of all inputs
        self.has_followers = False
        self.named: dict[int, frozenset[int]] = {}
        self._maker: list[Stack | None] = [None] * count  # of constants
        self._literals: set[int] = set()  # the stacks of literals
        self._backward: dict[int, bool] = {}
        self._keys: dict[int, _Key | None] = {}
        narrows = zip(inputs, self._is_float, self._is_wide)
        self._mixed = {x.argument for x, is_float, wide in narrows if is_float and not wide}
        # A loop takes the constants of its body: the equation inside is what uses them.
        self._uses: dict[int, Stack] = {}
        for each, _ in equations(graph):
            for value in graph.constants.keys() & set(each.inputs):
                self._uses.setdefault(value, each.stack)
        products = [each for each, _ in equations(graph) if each.primitive in PRODUCTS]
        self._products = products
        self._pairs = self._paired(products)
        self._product_mask = {id(each): 0 for each in products}
        self._result_mask = dict(self._product_mask)
        self._run()
        self.work: dict[int, float] = defaultdict(float)
        for each in products:
            count = operations(each.stack[0]) * repetitions(each.stack)
            self.work[self._product_mask[id(each)]] += count

    def _run(self) -> None:
        graph = self._graph
        of_product = {
            value
            for value, equation in graph.made_by.items()
            if equation.primitive in PRODUCTS
        }
        values = [v for v in self._order if self._is_wide[v] or v in of_product]
        inputs = set(graph.inputs)
        for _ in range(10):  # a second pass only where a loop feeds values back
            changed = False
            for value in values:
                before = self._state[value], self._mask[value]
                if value in inputs:
                    self._set(value, _State.PURE, self._of_input(value).bit)
                elif value in graph.constants:
                    self._constant(value)
                elif value in of_product:
                    self._product(value, graph.made_by[value])
                elif value in graph.made_by:
                    self._result(value, graph.made_by[value])
                else:
                    self._crossing(value)
                changed |= before != (self._state[value], self._mask[value])
            if not changed:
                return

    def _set(
        self, value: int, state: _State, mask: int = 0, maker: Stack | None = None
    ) -> None:
        self._state[value], self._mask[value], self._maker[value] = state, mask, maker

    @property
    def used(self) -> list[int]:
        """The sources that make work wide."""
        mask = 0
        for each in self.work:
            mask |= each
        return list(bits_of(mask))

    def wide(self, mask: int = -1) -> float:
        """The operations that run wide because of some sources, or of any."""
        return sum(count for each, count in self.work.items() if each & mask)

    def alone(self, mask: int, false: int) -> float:
        """The operations that run wide because of some sources alone.

        Args:
            mask: of these sources.
            false: of what only looks like a source.
        """
        work, others = self.work.items(), ~(mask | false)
        return sum(count for each, count in work if each & mask and not each & others)

    def without(self, keys: Container[object]) -> int:
        """The mask of all sources that make work wide but these."""
        found = (self.sources[number] for number in self.used)
        return sum(source.bit for source in found if source.key not in keys)

    def plan(self) -> dict[tuple[int, ...], int]:
        """The sources of the equations that could be narrow, as the bits of an integer.

        A key has the identity of the equation, and of those that contain it.

        These are the wide products, and what is computed for them from narrow values. What
        is wide after the last of them costs nothing, and may stay so.
        """
        graph, leads = self._graph, set[int]()
        for product in self._products:
            is_forward = not self._is_backward(product.stack)
            if self._product_mask[id(product)] and is_forward:
                leads.update(product.inputs[:2])
        for value in reversed(self._order):
            if value not in leads or not self._is_wide[value]:
                continue
            equation = graph.made_by.get(value)
            if equation is None:
                leads.update(graph.same.get(value, ()))
            elif not self._is_backward(equation.stack):
                leads.update(equation.inputs)
        found = {
            tuple(map(id, each.stack)): mask
            for each in self._products
            if (mask := self._product_mask[id(each)])
        }
        for value in leads:
            equation = graph.made_by.get(value)
            is_mixed = self._state[value] == _State.MIXED and self._mask[value]
            if equation is None or not is_mixed or equation.primitive in SHAPES:
                continue
            found.setdefault(tuple(map(id, equation.stack)), self._mask[value])
        return found

    # Sources

    def _of_input(self, value: int) -> Source:
        argument, path = self.inputs[value]
        source = self._source(path if argument in self._mixed else argument)
        self._leaves |= source.bit
        return source

    def _of_line(self, stack: Stack, is_of_jax: bool = False) -> Source:
        source = self._source(Written(stack).origin or NOWHERE, is_of_jax)
        source.stacks[id(stack[0])] = stack
        return source

    def _source(self, cause: Origin | str, is_of_jax: bool = False) -> Source:
        key = cause if isinstance(cause, str) else (_key(cause), is_of_jax)
        if key not in self._known:
            made = Source(len(self.sources), key, cause, is_of_jax=is_of_jax)
            self._known[key] = made
            self.sources.append(made)
        return self._known[key]

    def _enter(self, mask: int, equation: Equation) -> int:
        for number in bits_of(mask):
            self.sources[number].entered.setdefault(id(equation), equation)
        return mask

    def leaves(self, number: int) -> list[int]:
        """The inputs that are a source; none if that is a line."""
        name = self.sources[number].cause
        wide = [value for value in self._graph.inputs if self._is_wide[value]]
        return [value for value in wide if name in self.inputs[value]]

    def origin(self, number: int) -> Origin | None:
        """The line at which narrow values become wide because of a source."""
        cause = self.sources[number].cause
        for equation in self._entered(number):
            return Written(equation.stack).origin
        return None if isinstance(cause, str) else cause

    def uses(self, number: int) -> list[str]:
        """The lines that use what a source makes, before anything narrow has met it."""
        return _places(each.stack for each in self._first_entered(number))

    def makers(self, number: int) -> list[str]:
        """The last lines that make what these lines use."""
        uses, seen = self.uses(number), set[int]()
        found: list[Equation] = []
        queue = [value for each in self._first_entered(number) for value in each.inputs]
        for value in queue:
            if value in seen or not self._mask[value] >> number & 1:
                continue
            seen.add(value)
            made = self._graph.made_by.get(value)
            if made is None:
                queue += self._graph.same.get(value, ())
            elif _places([made.stack])[0] in uses:
                queue += made.inputs
            else:
                found.append(made)
        return _places(each.stack for each in found)

    def _first_entered(self, number: int) -> list[Equation]:
        is_mixed = lambda v: self._mask[v] >> number & 1 and self._state[v] == _State.MIXED
        return [x for x in self._entered(number) if not any(map(is_mixed, x.inputs))]

    def _entered(self, number: int) -> list[Equation]:
        """The equations at which a source makes values wide that come to products."""
        made = {id(self._graph.made_by.get(value)) for value in self._behind(number)}
        every = [*self.sources[number].entered.values()]
        forward = [each for each in every if not self._is_backward(each.stack)]
        led = [x for x in forward if id(x) in made or x.primitive in PRODUCTS]
        return led or every

    def _behind(self, number: int) -> frozenset[int]:
        """The values that have a source, behind products and among their operands."""
        graph, seen = self._graph, set[int]()
        forward = (x for x in self._products if not self._is_backward(x.stack))
        queue = [value for each in forward for value in each.inputs[:2]]
        while queue:
            value = queue.pop()
            if value not in seen and self._mask[value] >> number & 1:
                seen.add(value)
                made = graph.made_by.get(value)
                queue += made.inputs if made else graph.same.get(value, ())
        return frozenset(seen)

    def dtypes(self, number: int) -> list[str]:
        """The dtypes of the inputs that are a source."""
        avals = self._graph.avals
        return sorted({str(avals[value].dtype) for value in self.leaves(number)})

    def paths(self, number: int) -> list[str]:
        """The paths of the inputs that a source stands for; its own name if all do."""
        mine = self.leaves(number)
        named = self.named.get(number) or self.met(number)
        found = [self.inputs[value].path for value in mine if value in named]
        name = self.sources[number].cause
        return found if 0 < len(found) < len(mine) else [str(name)]

    def met(self, number: int) -> frozenset[int]:
        """The inputs of a source behind the values that meet narrow ones."""
        used, entered = 0, self.sources[number].entered.values()
        for value in {v for each in entered for v in each.inputs}:
            if self._mask[value] >> number & 1:
                used |= self._graph.dependencies(value)
        return frozenset(v for v in self.leaves(number) if used >> v & 1)

    def met_by_products(self, number: int) -> frozenset[int]:
        """Those that come to products, but for what is cast on the way."""
        return self._behind(number).intersection(self.leaves(number))

    def cast(self, values: Iterable[int]) -> frozenset[int]:
        """Those of some inputs that are cast before anything else uses them."""
        graph, users = self._graph, defaultdict[int, list[int]](list)
        for value, equation in graph.made_by.items():
            for operand in equation.inputs:
                users[operand].append(value)
        for value, others in graph.same.items():
            for other in others:
                users[other].append(value)

        def is_cast(value: int, seen: frozenset[int] = frozenset()) -> bool:
            return bool(users[value]) and all(
                user in seen or is_cast(user, seen | {user})
                if user in graph.same
                else graph.made_by[user].primitive == "convert_element_type"
                and not self._is_wide[user]
                for user in users[value]
            )

        return frozenset(filter(is_cast, values))

    # Values

    def _constant(self, value: int) -> None:
        stack = self._graph.constants[value]
        aval = self._graph.avals[value]
        if aval.shape and is_weak(aval):
            self._set(value, _State.CONSTANT)
        elif aval.shape:
            stack = self._uses.get(value, stack)
            source = self._of_line(stack)
            source.is_array = True
            self._set(value, _State.PURE, source.bit)
        else:
            self._literals.add(id(stack))
            is_known = self._is_backward(stack)
            self._set(value, _State.CONSTANT, maker=None if is_known else stack)

    def _crossing(self, value: int) -> None:
        """A value that crosses the boundary of a loop or a branch."""
        others = [v for v in self._graph.same.get(value, ()) if self._state[v]]
        if not others:
            return
        states = {self._state[v] for v in others}
        makers = [maker for v in others if (maker := self._maker[v]) is not None]
        if states <= {_State.CONSTANT}:
            return self._set(value, _State.CONSTANT, maker=makers[0] if makers else None)
        mask = self._masks(others)
        is_pure = states <= {_State.PURE, _State.CONSTANT}
        self._set(value, _State.PURE if is_pure else _State.MIXED, mask)

    def _result(self, value: int, equation: Equation) -> None:
        """A wide value that an equation computes."""
        floats = [v for v in equation.inputs if self._is_float[v]]
        is_conversion = equation.primitive == "convert_element_type"
        if is_weak(self._graph.avals[value]):
            return self._set(value, _State.CONSTANT)
        if is_conversion and not (floats and self._is_wide[floats[0]]):
            return self._conversion(value, equation, bool(floats))
        is_shape = equation.primitive in SHAPES and len(floats) == 1
        if is_conversion or is_shape:
            (v,) = floats
            maker = self._maker[v]
            maker = equation.stack if id(maker) in self._literals else maker
            return self._set(value, self._state[v], self._mask[v], maker)
        states = {self._state[v] for v in floats}
        hard = [v for v in floats if self._state[v] >= _State.PURE]
        is_mixed = bool(states & {_State.NARROW, _State.MIXED})
        if not hard:
            self._first(value, equation, floats, is_mixed)
        elif is_mixed:
            pure = [v for v in hard if self._state[v] == _State.PURE]
            mask = self._masks(hard) | self._arrays(floats, equation)
            self._enter(self._masks(pure), equation)
            self._set(value, _State.MIXED, mask)
        else:
            # A cast here is enough for all lines, and an input has a place of its own.
            masks = {self._mask[v] & ~self._leaves for v in hard}
            is_joined = len(masks - {0}) > 1
            lines = self._of_line(equation.stack).bit if is_joined else max(masks)
            leaves = self._masks(hard) & self._leaves
            self._set(value, _State.PURE, leaves | lines)

    def _conversion(self, value: int, equation: Equation, is_float: bool) -> None:
        """A value that becomes wide by a conversion."""
        stack = equation.stack
        if self._is_backward(stack):
            return self._set(value, _State.NARROW)
        written = Written(stack)
        is_cast = written.is_explicit or written.is_of_ours
        if is_cast and written.is_following:
            is_cast, self.has_followers = False, True
        if is_float and is_cast:
            source = self._of_line(stack)
            source.is_cast = True
            source.is_policy |= written.is_of_ours
            return self._set(value, _State.MIXED, self._enter(source.bit, equation))
        if is_float:
            return self._set(value, _State.NARROW)
        if is_cast:
            return self._set(value, _State.PURE, self._of_line(stack).bit)
        self._set(value, _State.CONSTANT, maker=stack)

    def _first(
        self, value: int, equation: Equation, floats: list[int], is_mixed: bool
    ) -> None:
        """A wide value with no operand that has a source."""
        state = _State.MIXED if is_mixed else _State.PURE
        makers = [self._maker[v] for v in floats if self._state[v] == _State.CONSTANT]
        makers = [maker for maker in makers if maker is not None]
        line = self._line(equation.stack)
        makers = [each for each in makers if self._line(each) != line] or makers
        maker = next(iter(makers), equation.stack)
        source = self._of_line(maker)
        source.is_number |= is_mixed and id(maker) in self._literals
        mask = self._enter(source.bit, equation) if is_mixed else source.bit
        self._set(value, state, mask)

    def _product(self, value: int, equation: Equation) -> None:
        operands = equation.inputs[:2]
        wide = [v for v in operands if self._is_wide[v]]
        stack = equation.stack
        is_forward = not self._is_backward(stack)
        mask, matched = self._masks(wide), 0
        if wide:
            if not is_forward:
                for each in self._pairs[id(equation)]:
                    matched |= self._product_mask[id(each)] | self._result_mask[id(each)]
                mask = matched or mask
            mask = mask or self._arrays(wide, equation) or self._of_line(stack).bit
            self._enter(mask, equation)
        self._product_mask[id(equation)] = mask
        if self._is_wide[value]:
            if not wide and is_forward:
                source = self._of_line(stack, Written(stack).is_of_jax_nn)
                source.is_product = True
                mask = self._enter(source.bit, equation)
            self._set(value, _State.MIXED, mask)
        self._result_mask[id(equation)] = self._mask[value]

    def _paired(self, products: Iterable[Equation]) -> dict[int, list[Equation]]:
        """The forward products that each product of a backward pass belongs to.

        The same call made them, and they share an operand. If a loop in Python made
        several, the backward pass has the last one first.
        """
        forward: dict[object, list[Equation]] = defaultdict(list)
        backward: dict[tuple[int, ...], list[Equation]] = defaultdict(list)
        roots = {id(each): set(map(self._root, each.inputs[:2])) for each in products}
        for each in products:
            if not self._is_backward(each.stack):
                chain = Written(each.stack).calls
                for n in range(len(chain)):  # a rule has the line of the call that has it
                    forward[chain[n:]].append(each)
        known = {id(each): each for each in products}
        for each in products:
            if self._is_backward(each.stack):
                others = forward[Written(each.stack).calls]
                share = [x for x in others if roots[id(x)] & roots[id(each)]]
                backward[tuple(map(id, share or others))].append(each)
        found: dict[int, list[Equation]] = {}
        for numbers, group in backward.items():
            others = [known[number] for number in numbers]
            last = others[: -len(group) - 1 : -1]
            is_one = len(last) == len(group)
            for n, each in enumerate(group):
                found[id(each)] = [last[n]] if is_one else others
        return found

    def _root(self, value: int) -> int:
        """The value that one inside of loops stands for."""
        while len(same := self._graph.same.get(value, ())) == 1:
            value = same[0]
        return value

    def _masks(self, values: Iterable[int]) -> int:
        mask = 0
        for value in values:
            mask |= self._mask[value]
        return mask

    def _arrays(self, values: list[int], equation: Equation) -> int:
        """The sources of arrays that calls for them made of constants.

        A literal takes the dtype of its neighbor, and so does what `jnp.where` or
        `jnp.zeros_like` makes of it.
        """
        mask = 0
        for value in values:
            maker = self._maker[value]
            if maker is None or not self._graph.avals[value].shape:
                continue
            if Written(maker).is_filled:
                mask |= self._enter(self._of_line(maker).bit, equation)
        return mask

    def _line(self, stack: Stack) -> _Key | None:
        # Also the lines of outer equations matter, but not often: they share an origin.
        number = id(stack[0])
        if number not in self._keys:
            origin = Written(stack).origin
            self._keys[number] = None if origin is None else _key(origin)
        return self._keys[number]

    def _is_backward(self, stack: Stack) -> bool:
        return any(map(self._is_backward_equation, stack)) and Written(stack).is_backward

    def _is_backward_equation(self, eqn: JaxEquation) -> bool:
        if id(eqn) not in self._backward:
            self._backward[id(eqn)] = Written((eqn,)).is_backward
        return self._backward[id(eqn)]


def _places(stacks: Iterable[Stack]) -> list[str]:
    return [*dict.fromkeys((Written(stack).origin or NOWHERE).place for stack in stacks)]


def bits_of(mask: int) -> Iterator[int]:
    """The numbers of the sources in a mask."""
    return (n for n in range(mask.bit_length()) if mask >> n & 1)


def _key(origin: Origin) -> _Key:
    users = origin.users
    return origin.file, origin.line, users.file, users.line
