"""A program as blocks of nodes, and the one walk through calls, loops and branches.

A block is a jaxpr where it stands, a node an equation where it stands. Both read what is
inside of them when a walk comes there, so a part that no walk enters costs nothing.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from .._leaves.types import Equation, Jaxpr, Leaf
from .jaxprs import Stack, Variable, expanded, is_literal, jaxprs_in, loop_parts, open_jaxpr

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

Value = TypeVar("Value")


def _branches_of(eqn: Equation) -> Sequence[Jaxpr]:
    return eqn.params["branches"]


def _body_of(eqn: Equation) -> Sequence[Jaxpr]:
    return [loop_parts(eqn).body]


def _body_and_condition_of(eqn: Equation) -> Sequence[Jaxpr]:
    return [eqn.params["body_jaxpr"], eqn.params["cond_jaxpr"]]


def _solver_of(eqn: Equation) -> Sequence[Jaxpr]:
    return [eqn.params["jaxprs"].solve]


def _shard_of(eqn: Equation) -> Sequence[Jaxpr]:
    return jaxprs_in(eqn.params)


_JAXPRS_OF_FORM: Mapping[str, Callable[[Equation], Sequence[Jaxpr]]] = {
    SCAN: _body_of,
    WHILE: _body_and_condition_of,
    COND: _branches_of,
    SHARD_MAP: _shard_of,
    SOLVE: _solver_of,
}


def form_of(eqn: Equation) -> tuple[str, Sequence[Jaxpr]]:
    """Returns the form of an equation, and the jaxprs that run in its place."""
    read_jaxprs = _JAXPRS_OF_FORM.get(eqn.primitive.name)
    if read_jaxprs is not None:
        return eqn.primitive.name, read_jaxprs(eqn)
    # A call has a jaxpr with its own operands and results, whatever JAX names both.
    for param in eqn.params.values():
        if _is_called(param, eqn):
            return CALL, [param]
    expansion = expanded(eqn)
    if expansion is not None:
        return CALL, [expansion]
    return CLOSED, []


def _is_called(param: object, eqn: Equation) -> bool:
    jaxpr = open_jaxpr(param)
    if not hasattr(jaxpr, "eqns"):
        return False
    takes_operands = len(jaxpr.invars) == len(eqn.invars)
    return takes_operands and len(jaxpr.outvars) == len(eqn.outvars)


class Node:
    """An equation where it stands: a function called twice has two nodes of each.

    Attributes:
        eqn: the equation.
        stack: it and those whose jaxprs contain it, inside out.
        name: that of its primitive.
    """

    def __init__(self, eqn: Equation, stack: Stack):
        self.eqn = eqn
        self.stack = stack
        self.name: str = eqn.primitive.name

    @functools.cached_property
    def form(self) -> str:
        """How its inside is read."""
        form, _ = form_of(self.eqn)
        return form

    @functools.cached_property
    def inner(self) -> Sequence["Block"]:
        """The blocks that run in its place."""
        _, jaxprs = form_of(self.eqn)
        return [Block(jaxpr, self.stack) for jaxpr in jaxprs]


class Block:
    """A jaxpr where it stands in a program.

    Attributes:
        jaxpr: open or closed.
        stack: the equations around it, inside out.
        consts: the arrays that it holds.
        inputs: its variables, those of the arrays that it holds first.
        outputs: its results.
    """

    def __init__(self, jaxpr: Jaxpr, stack: Stack = ()):
        opened = open_jaxpr(jaxpr)
        self.jaxpr = jaxpr
        self.stack = stack
        self.consts: list[Leaf] = list(getattr(jaxpr, "consts", ()))
        self.inputs: list[Variable] = [*opened.constvars, *opened.invars]
        self.outputs: list[Variable] = list(opened.outvars)

    @functools.cached_property
    def nodes(self) -> Sequence[Node]:
        """Its equations, in order."""
        equations = open_jaxpr(self.jaxpr).eqns
        return [Node(eqn, (eqn, *self.stack)) for eqn in equations]

    @functools.cached_property
    def constants(self) -> dict[Variable, Leaf]:
        """The arrays that it holds, by their variables."""
        return dict(zip(self.inputs, self.consts))


class Walk(Generic[Value]):
    """One way through a program, for a domain: numbers, traced values, dtypes, and so on.

    Attributes:
        rules: what computes the results of a node, by its form.
    """

    rules: ClassVar[Mapping[str, Callable[..., Sequence[Any]]]]

    def form(self, node: Node) -> str:
        """Returns the key of a node's rule."""
        return node.form

    def enter(self, block: Block, arguments: Sequence[Value]) -> dict[Variable, Value]:
        """Returns the first values of a block, by variable."""
        raise NotImplementedError

    def literal(self, var: Variable) -> Value:
        """Returns the value of a number that stands in an equation."""
        raise NotImplementedError

    def read(
        self,
        block: Block,
        user: Node | Block,
        place: int,
        var: Variable,
        values: dict[Variable, Value],
    ) -> Value:
        """Returns an operand of a node, or a result of a block, by its place there."""
        return self.literal(var) if is_literal(var) else values[var]

    def block(self, block: Block, arguments: Sequence[Value]) -> list[Value]:
        """Returns the results of a block."""
        values = self.enter(block, arguments)
        for node in block.nodes:
            self.visit(block, node, values)
        return self._read_all(block, block, block.outputs, values)

    def visit(self, block: Block, node: Node, values: dict[Variable, Value]) -> None:
        """Adds the results of a node to the values of its block."""
        operands = self._read_all(block, node, node.eqn.invars, values)
        values.update(zip(node.eqn.outvars, self.node(node, operands)))

    def node(self, node: Node, operands: list[Value]) -> Sequence[Value]:
        """Returns the results of a node."""
        return self.rules[self.form(node)](self, node, operands)

    def _read_all(
        self,
        block: Block,
        user: Node | Block,
        variables: Sequence[Variable],
        values: dict[Variable, Value],
    ) -> list[Value]:
        operands: list[Value] = []
        for place, var in enumerate(variables):
            operands.append(self.read(block, user, place, var, values))
        return operands
