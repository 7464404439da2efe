"""A program as blocks of nodes: jaxprs and equations where they stand.

Both read what is inside of them when a walk comes there, so a part that no walk enters
costs nothing. What a walk learns of a node, it notes there.
"""

import collections
import functools
import types
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from .._leaves.types import Equation, Jaxpr, Leaf
from .._tracebacks.written import Written
from .aligned import NO_TRACES, SecondTraces
from .jaxprs import Stack, Variable, expanded, is_literal, jaxprs_in, open_jaxpr

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

# By place. Nodes and blocks share it until a reader of constants notes some.
_NO_INTENDED: Mapping[int, np.ndarray] = types.MappingProxyType({})


def form_of(eqn: Equation) -> tuple[str, Sequence[Jaxpr]]:
    """Returns the form of an equation, and the jaxprs that run in its place."""
    name = eqn.primitive.name
    params = eqn.params
    if name == SCAN:
        return name, [params["jaxpr"]]
    if name == WHILE:
        return name, [params["body_jaxpr"], params["cond_jaxpr"]]
    if name == COND:
        return name, params["branches"]
    if name == SHARD_MAP:
        return name, jaxprs_in(params)
    if name == SOLVE:
        return name, [params["jaxprs"].solve]
    # A call has a jaxpr with its own operands and results, whatever JAX names both.
    for param in params.values():
        if _is_called(param, eqn):
            return CALL, [param]
    expansion = expanded(eqn)
    if expansion is None:
        return CLOSED, []
    return CALL, [expansion]


def _is_called(param: object, eqn: Equation) -> bool:
    jaxpr = open_jaxpr(param)
    if not hasattr(jaxpr, "eqns"):
        return False
    if len(jaxpr.invars) != len(eqn.invars):
        return False
    return len(jaxpr.outvars) == len(eqn.outvars)


class Node:
    """An equation where it stands: a function called twice has two nodes of each.

    The attributes from `number` on are noted by who runs the program in other dtypes, and
    so is another rule.

    Attributes:
        eqn: the equation.
        block: the block that holds it.
        stack: it and those whose jaxprs contain it, inside out.
        name: that of its primitive.
        rule: how it is visited: its form, which tells how its inside is read, or another.
        number: its place in the order of the program, after all inside of it.
        line: the number of its line; None if nothing rounds there.
        rounds: whether it rounds as written, where it has a wide form.
        intended: the constants among its operands as they were meant, by operand.
        constant: the Python number that it rounds, if it is the conversion of one.
        doubtful: its constants of 16 bits that may have been rounded before the trace.
        last: the variables that nothing after it uses.
        room: for the notes of how many turns it has room, if it is a `while` loop.
    """

    number = -1
    line: int | None = None
    rounds = False
    intended: Mapping[int, np.ndarray] = _NO_INTENDED
    constant: float | None = None
    doubtful: Sequence[np.ndarray] = ()
    last: Sequence[Variable] = ()
    room = 16

    def __init__(self, eqn: Equation, block: "Block"):
        self.eqn = eqn
        self.block = block
        self.stack: Stack = (eqn, *block.stack)
        self.name: str = eqn.primitive.name

    @functools.cached_property
    def rule(self) -> str:
        form, _ = form_of(self.eqn)
        return form

    @functools.cached_property
    def inner(self) -> "Sequence[Block]":
        """The blocks that run in its place."""
        blocks = []
        _, jaxprs = form_of(self.eqn)
        # Each place has blocks of its own.
        for jaxpr in jaxprs:
            block = Block(jaxpr, self.stack, self.block.traces)
            blocks.append(block)
        return blocks

    # Plans ask for these again and again.

    @functools.cached_property
    def ends(self) -> Collection[int]:
        """The operands that are cast to the dtype that they have, where width ends."""
        return self.block.traces.wide.ends_of_width(self.eqn)

    @functools.cached_property
    def follows(self) -> bool | None:
        """Whether the target of this conversion follows the dtypes of the arguments."""
        return self.block.traces.sibling.follows(self.eqn)

    @functools.cached_property
    def asks_for_result(self) -> bool:
        """Whether this product asks for the dtype of its result."""
        return self.block.traces.sibling.asks_for_result(self.eqn)

    @functools.cached_property
    def is_backward(self) -> bool:
        """Whether it belongs to a backward pass."""
        return Written(self.stack).is_backward

    @functools.cached_property
    def is_asked(self) -> bool:
        """Whether the source asks for the target of this conversion."""
        # The source first: the second trace may have to be made.
        if not Written(self.stack).is_explicit:
            return False
        return self.follows is not True


class Block:
    """A jaxpr where it stands in a program.

    Attributes:
        jaxpr: open or closed.
        stack: the equations around it, inside out.
        traces: it beside its other traces.
        consts: the arrays that it holds.
        inputs: its variables, those of the arrays that it holds first.
        outputs: its results.
        uses: how often each of its variables is used, once `drop_unused` has counted.
        number: its place in the order of the program, after all inside of it.
        first: the number of the first node inside of it.
        intended: the constants among the outputs as they were meant, by output.
    """

    number = -1
    first = -1
    intended: Mapping[int, np.ndarray] = _NO_INTENDED

    def __init__(self, jaxpr: Jaxpr, stack: Stack = (), traces: SecondTraces = NO_TRACES):
        # A closed jaxpr holds the arrays of its constants, an open one their variables.
        opened = open_jaxpr(jaxpr)
        self.jaxpr = jaxpr
        self._opened = opened
        self.stack = stack
        self.traces = traces
        self.consts: Sequence[Leaf] = getattr(jaxpr, "consts", ())
        self.inputs: list[Variable] = [*opened.constvars, *opened.invars]
        self.outputs: Sequence[Variable] = opened.outvars
        self.uses = collections.defaultdict[Variable, int](int)

    @functools.cached_property
    def nodes(self) -> Sequence[Node]:
        """Its equations, in order."""
        # Made when a walk comes: functions that call each other would grow without end.
        nodes = []
        for eqn in self._opened.eqns:
            node = Node(eqn, self)
            nodes.append(node)
        return nodes

    @functools.cached_property
    def ends(self) -> Collection[int]:
        """The outputs that are cast to the dtype that they have, where width ends."""
        return self.traces.wide.ends_of_width(self._opened)

    @functools.cached_property
    def _constants(self) -> dict[Variable, Leaf]:
        return dict(zip(self.inputs, self.consts))

    def constant(self, var: Variable) -> Leaf | None:
        """Returns the number or the array that a variable is, if the jaxpr holds that."""
        if is_literal(var):
            return var.val
        return self._constants.get(var)

    def all_nodes(self) -> Iterator[Node]:
        """Yields its nodes and those inside of them, in the order of the program."""
        for node in self.nodes:
            for block in node.inner:
                yield from block.all_nodes()
            yield node

    def drop_unused(self) -> None:
        """Drops nodes on which nothing depends, and notes what nothing uses after each."""
        # The body of a loop is walked more than once.
        uses = self.uses
        uses.clear()
        for var in _without_literals(self.outputs):
            uses[var] += 1
        live_nodes = []
        for node in reversed(self.nodes):
            eqn = node.eqn
            last = []
            for var in eqn.outvars:
                if var not in uses:
                    last.append(var)
            # JAX keeps equations that nothing uses, and would compute them in each run.
            if len(last) == len(eqn.outvars) and not eqn.effects:
                continue
            for var in _without_literals(eqn.invars):
                if var not in uses:
                    last.append(var)
                uses[var] += 1
            node.last = last
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
