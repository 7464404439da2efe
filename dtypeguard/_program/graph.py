"""A jaxpr and all jaxprs inside it as one graph of values, to be walked backwards."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._leaves.types import Aval, Jaxpr, Leaf
from .jaxprs import Stack, Variable, all_jaxprs, is_literal, open_jaxpr, split_operands
from .program import CALL, COND, LOOPS, SHARD_MAP, Block, Node
from .walk import Walk

# The equations that a graph has before the calls of a jaxpr share theirs, and as a multiple
# of the program's own: functions that call each other twice, level by level, would make one
# that grows exponentially, and take longer than JAX takes to trace the program.
_MOST_UNSHARED = 1_000
_MOST_FOLD = 4


class Equation(NamedTuple):
    """An equation of a jaxpr that computes something itself.

    Attributes:
        primitive: its name.
        inputs: the values that it is made of.
        stack: JAX's equation, then those whose jaxprs contain it, inside out.
    """

    primitive: str
    inputs: tuple[int, ...]
    stack: Stack


class Graph(Walk[int]):
    """The values of a jaxpr, numbered, with calls and loops resolved.

    A value that crosses the boundary of a `jit`, a loop or a branch has another number on
    the other side, and an entry in `same`. Each call of a jitted function has values of its
    own, so that a walk leaves it where it came in.

    Attributes:
        inputs: the values of the arguments, which come first.
        outputs: the values that are returned.
        avals: the abstract value of each.
        made_by: the equation of each. Inputs, constants and values that cross a boundary
            have none.
        same: the values that one may be.
        constants: literals and closed-over values, with the stack of the first equation
            that uses them.
        values: those of constants, as far as the jaxpr holds these.
        returned_by: the jaxprs of functions inside that return a constant: no equation has
            their line.
        variables: those of constants and inputs.
        regions: what blame has found in it.
    """

    def __init__(self, jaxpr: Jaxpr, arguments: int | None = None):
        self.avals: list[Aval] = []
        self.made_by: dict[int, Equation] = {}
        self.same: dict[int, list[int]] = {}
        self.constants: dict[int, Stack] = {}
        self.values: dict[int, Leaf] = {}
        self.returned_by: dict[int, Jaxpr] = {}
        self.variables: dict[int, Variable] = {}
        self.regions: dict[Any, Any] = {}
        size = sum(len(inner.eqns) for inner in all_jaxprs(jaxpr))
        self._remaining = max(_MOST_UNSHARED, _MOST_FOLD * size)
        self._shared: dict[int, tuple[list[int], list[int], Jaxpr]] = {}
        block = Block(jaxpr)
        variables = open_jaxpr(jaxpr).invars
        if arguments is not None:
            # JAX puts what a function closes over first.
            variables = variables[max(len(variables) - arguments, 0) :]
        self.inputs: list[int] = []
        for variable in variables:
            value = self._new(variable.aval)
            self.variables[value] = variable
            self.inputs.append(value)
        self.outputs = self.block(block, self.inputs)

    # What it tells

    def origins(self, value: int) -> list[int]:
        """Returns the values that a value may be, past calls, loops and branches."""
        origins: list[int] = []
        seen = {value}
        waiting = [value]
        for entered in waiting:  # which grows
            if entered not in self.same:
                origins.append(entered)
            for source in self.same.get(entered, ()):
                if source not in seen:
                    seen.add(source)
                    waiting.append(source)
        return origins

    def dependencies(self, value: int) -> int:
        """Returns the inputs that a value depends on, as the bits of an integer."""
        return self._dependencies.get(value, 0)

    @functools.cached_property
    def _dependencies(self) -> dict[int, int]:
        bits_of = {value: 1 << value for value in self.inputs}
        has_changed = True
        while has_changed:  # a second pass only where a loop feeds values back
            has_changed = False
            for value in range(len(self.avals)):  # sources come first
                before = bits_of.get(value, 0)
                after = before
                for source in self.sources(value):
                    after |= bits_of.get(source, 0)
                if after != before:
                    bits_of[value] = after
                    has_changed = True
        return bits_of

    def sources(self, value: int) -> Sequence[int]:
        """Returns the values that one is made of, or may be."""
        equation = self.made_by.get(value)
        if equation is None:
            return self.same.get(value, ())
        return equation.inputs

    # How it is made

    def _new(self, aval: Aval, source: int | None = None) -> int:
        value = len(self.avals)
        self.avals.append(aval)
        if source is not None:
            self.same[value] = [source]
        return value

    def enter(self, block, arguments):
        # Counted when it is entered, so that deep calls share what is inside early enough.
        self._remaining -= len(block.nodes)
        # A closed-over value gets its number where it is used first.
        first = len(block.inputs) - len(arguments)
        return dict(zip(block.inputs[first:], arguments))

    def read(self, block, user, place, var, values):
        is_number = is_literal(var)
        if not is_number and var in values:
            return values[var]
        value = self._new(var.aval)
        self.constants[value] = user.stack
        self.variables[value] = var
        # No equation uses it, so blame asks the function that returns it.
        if user is block and block.stack:
            self.returned_by[value] = open_jaxpr(block.jaxpr)
        if is_number:
            self.values[value] = var.val
        else:
            values[var] = value
            if var in block.constants:
                self.values[value] = block.constants[var]
        return value

    def node(self, node, operands):
        try:
            results = self._enter(node, operands)
        except Exception:  # the parameters differ in this release of JAX
            results = None
        if results is None:
            equation = Equation(node.name, tuple(operands), node.stack)
            return self._results(equation, node.eqn.outvars)
        return results

    def _results(self, equation: Equation, variables: Sequence[Variable]) -> list[int]:
        """Returns the results of an equation whose inside stays closed."""
        results: list[int] = []
        for variable in variables:
            value = self._new(variable.aval)
            self.made_by[value] = equation
            results.append(value)
        return results

    def _enter(self, node: Node, operands: list[int]) -> list[int] | None:
        """Returns the results of a node with others inside; None of another one."""
        if node.form not in _OPEN:
            return None
        block_results: list[list[int]] = []
        if node.form in LOOPS:
            block_results.append(self._loop(node, operands))
        elif node.form == COND:
            for branch in node.inner:
                block_results.append(self.block(branch, operands[1:]))
        else:
            call = self.block if self._remaining > 0 else self._shared_call
            block_results.append(call(node.inner[0], operands))
        # Behind their sources, in the order of the program.
        results = [self._new(variable.aval) for variable in node.eqn.outvars]
        for sources in block_results:
            self._join(results, sources)
        return results

    def _loop(self, node: Node, operands: list[int]) -> list[int]:
        _, shared, carry, scanned = split_operands(node.eqn, operands)
        body = node.inner[0]
        # The body sees slices of the scanned arrays, and the carry comes round again.
        variables = open_jaxpr(body.jaxpr).invars[len(shared) :]
        entered: list[int] = []
        for variable, value in zip(variables, [*carry, *scanned]):
            entered.append(self._new(variable.aval, value))
        results = self.block(body, [*shared, *entered])
        count = len(carry)
        self._join(entered[:count], results[:count])
        return [*entered[:count], *results[count:]]

    def _shared_call(self, block: Block, operands: list[int]) -> list[int]:
        """Returns the results of a call whose inside is that of all calls of its jaxpr."""
        jaxpr = open_jaxpr(block.jaxpr)
        if id(jaxpr) in self._shared:
            entered, results, _ = self._shared[id(jaxpr)]
            self._join(entered, operands)
            return results
        entered = []
        for variable, value in zip(jaxpr.invars, operands):
            entered.append(self._new(variable.aval, value))
        results = self.block(block, entered)
        # With the jaxpr, which keeps its identity.
        self._shared[id(jaxpr)] = (entered, results, jaxpr)
        return results

    def _join(self, values: Sequence[int], sources: Sequence[int]) -> None:
        for value, source in zip(values, sources):
            self.same.setdefault(value, []).append(source)


_OPEN = LOOPS | {CALL, COND, SHARD_MAP}
