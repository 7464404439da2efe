"""A program as blocks of nodes: jaxprs and equations where they stand.

Both read what is inside of them when a walk comes there, so a part that no walk enters
costs nothing. What a walk learns of a node, it notes there.
"""

import collections
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from .._leaves.types import Equation, Jaxpr, Leaf
from .._tracebacks.written import Written
from .aligned import NO_TRACES, SecondTraces
from .jaxprs import (
    Stack,
    Variable,
    constants_of,
    inner_jaxprs_of,
    is_literal,
    open_jaxpr,
)

_T = TypeVar("_T")

# The forms of equations, by what runs in their place. Loops, branches and shards are named
# as their primitives. A closed one has jaxprs that say how it computes, or none.
SCAN = "scan"
WHILE = "while"
COND = "cond"
SHARD_MAP = "shard_map"
SOLVE = "custom_linear_solve"
CALL = "call"
CLOSED = "closed"
LOOPS = frozenset([SCAN, WHILE])
# All jaxprs of these run in their place. Of a `while` loop the body comes first.
_STRUCTURED = LOOPS | {COND, SHARD_MAP}


def form_of(eqn: Equation) -> tuple[str, Sequence[Jaxpr]]:
    """Returns the form of an equation, and the jaxprs that run in its place."""
    name = eqn.primitive.name
    jaxprs = inner_jaxprs_of(eqn)
    if name in _STRUCTURED:
        return name, jaxprs
    if name == SOLVE:
        return name, [eqn.params["jaxprs"].solve]
    # A call has a jaxpr with its own operands and results, whatever JAX names both.
    for jaxpr in jaxprs:
        opened = open_jaxpr(jaxpr)
        if len(opened.invars) != len(eqn.invars):
            continue
        if len(opened.outvars) == len(eqn.outvars):
            return CALL, [jaxpr]
    return CLOSED, []


class LoopOperands(NamedTuple, Generic[_T]):
    """The operands of a loop in their groups.

    Attributes:
        of_condition: what the condition alone is given.
        shared: what the body is given in each turn.
        carry: what the body is given first, and returns for its next turn.
        scanned: what the body is given slices of.
    """

    of_condition: list[_T]
    shared: list[_T]
    carry: list[_T]
    scanned: list[_T]


def split_operands(eqn: Equation, operands: Sequence[_T]) -> LoopOperands[_T]:
    """Returns the operands of a loop in their groups."""
    # Told by shapes: the parameters that say so have other names in other releases.
    body = open_jaxpr(inner_jaxprs_of(eqn)[0])
    first_shared = len(eqn.invars) - len(body.invars)
    rows = _count_axes(eqn.outvars) - _count_axes(body.outvars)
    scanned = _count_axes(eqn.invars[first_shared:]) - _count_axes(body.invars)
    first_scanned = len(operands) - scanned
    first_carried = first_scanned - len(eqn.outvars) + rows
    values = list(operands)
    return LoopOperands(
        of_condition=values[:first_shared],
        shared=values[first_shared:first_carried],
        carry=values[first_carried:first_scanned],
        scanned=values[first_scanned:],
    )


def _count_axes(variables: Sequence[Variable]) -> int:
    """Returns how many axes values have; what is scanned has one more outside."""
    # Tokens have none.
    return sum(np.ndim(var.aval) for var in variables)


class User:
    """What uses values: a node computes with its operands, a block returns its outputs.

    Attributes:
        source: the equation, or the open jaxpr.
        block: the block that holds the values.
        stack: the equations around them, inside out; of a node its own is the first.
        number: its place in the order of the program, after all inside of it.
        intended: the constants among them as they were meant, by place.
    """

    source: Equation | Jaxpr
    block: "Block"
    stack: Stack
    number = -1
    # All share it until a reader of constants notes some.
    intended: Mapping[int, np.ndarray] = {}


class Node(User):
    """An equation where it stands: a function called twice has two nodes of each.

    The attributes from `line` on are noted by who runs the program in other dtypes, and so
    is another rule.

    Attributes:
        eqn: the equation.
        name: that of its primitive.
        rule: how it is visited: its form, which tells how its inside is read, or another.
        line: the number of its line; None if nothing rounds there.
        rounds: whether it rounds as written, where it has a wide form.
        constant: the Python number that it rounds, if it is the conversion of one.
        doubtful: its constants of 16 bits that may have been rounded before the trace.
        last: the variables that nothing after it uses.
        room: for the notes of how many turns it has room, if it is a `while` loop.
    """

    line: int | None = None
    rounds = False
    constant: float | None = None
    doubtful: Sequence[np.ndarray] = ()
    last: Collection[Variable] = ()
    room = 16

    def __init__(self, eqn: Equation, block: "Block"):
        self.eqn = self.source = eqn
        self.block = block
        self.stack = (eqn, *block.stack)
        self.name = eqn.primitive.name

    @functools.cached_property
    def rule(self) -> str:
        form, _ = form_of(self.eqn)
        return form

    @functools.cached_property
    def inner(self) -> "Sequence[Block]":
        """The blocks that run in its place."""
        # Each place has blocks of its own.
        blocks = []
        _, jaxprs = form_of(self.eqn)
        for jaxpr in jaxprs:
            block = Block(jaxpr, self.stack, self.block.traces)
            blocks.append(block)
        return blocks

    @property
    def follows(self) -> bool | None:
        """Whether the target of this conversion follows the dtypes of the arguments."""
        return self.block.traces.sibling.moves.get(self.eqn)

    @functools.cached_property
    def is_backward(self) -> bool:
        """Whether it belongs to a backward pass."""
        # Plans ask again and again.
        return Written(self.stack).is_backward

    @functools.cached_property
    def is_asked(self) -> bool:
        """Whether the source asks for the target of this conversion."""
        # The source first: the second trace may have to be made.
        if not Written(self.stack).is_explicit:
            return False
        return self.follows is not True


class Block(User):
    """A jaxpr where it stands in a program.

    Attributes:
        jaxpr: open or closed.
        traces: it beside its other traces.
        consts: the arrays that it holds, by variable.
        arguments: its variables, but for those of the arrays.
        outputs: its results.
        uses: how often each of its variables is used, once `drop_unused` has counted.
        first: the number of the first node inside of it.
    """

    first = -1
    uses: Mapping[Variable, int]

    def __init__(self, jaxpr: Jaxpr, stack: Stack = (), traces: SecondTraces = NO_TRACES):
        opened = open_jaxpr(jaxpr)
        self.jaxpr = jaxpr
        self.source = opened
        self.block = self
        self.stack = stack
        self.traces = traces
        self.consts = constants_of(jaxpr)
        self.arguments = opened.invars
        self.outputs = opened.outvars

    @functools.cached_property
    def nodes(self) -> Sequence[Node]:
        """Its equations, in order."""
        # Made when a walk comes: functions that call each other would grow without end.
        nodes = []
        for eqn in open_jaxpr(self.jaxpr).eqns:
            node = Node(eqn, self)
            nodes.append(node)
        return nodes

    def constant(self, var: Variable) -> Leaf | None:
        """Returns the number or the array that a variable is, if the jaxpr holds that."""
        if is_literal(var):
            return var.val
        return self.consts.get(var)

    def all_nodes(self) -> Iterator[Node]:
        """Yields its nodes and those inside of them, in the order of the program."""
        for node in self.nodes:
            for block in node.inner:
                yield from block.all_nodes()
            yield node

    def drop_unused(self) -> None:
        """Drops nodes on which nothing depends, and notes what nothing uses after each."""
        # Counted anew, since the body of a loop is walked more than once.
        uses = collections.Counter(_without_literals(self.outputs))
        self.uses = uses
        live_nodes = []
        for node in reversed(self.nodes):
            eqn = node.eqn
            # JAX keeps equations that nothing uses, and would compute them in each run.
            if uses.keys().isdisjoint(eqn.outvars) and not eqn.effects:
                continue
            operands = _without_literals(eqn.invars)
            node.last = {*operands, *eqn.outvars}.difference(uses)
            uses.update(operands)
            live_nodes.append(node)
        live_nodes.reverse()
        self.nodes = live_nodes


def _without_literals(operands: Sequence[Variable]) -> list[Variable]:
    """Returns the operands that are no numbers."""
    variables = []
    for var in operands:
        if not is_literal(var):
            variables.append(var)
    return variables
