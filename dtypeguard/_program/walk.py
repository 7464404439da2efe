"""The one walk through a program: its calls, loops, branches, shards and solvers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from .jaxprs import Variable, is_literal
from .program import Block, Node

_T = TypeVar("_T")


class Walk(Generic[_T]):
    """One way through a program, for a domain: numbers, traced values, dtypes, and so on.

    Attributes:
        rules: what computes the results of a node, by its form.
    """

    rules: ClassVar[Mapping[str, Callable[..., Sequence[Any]]]]

    def form(self, node: Node) -> str:
        """Returns the key of a node's rule."""
        return node.form

    def enter(self, block: Block, arguments: Sequence[_T]) -> dict[Variable, _T]:
        """Returns the first values of a block, by variable."""
        raise NotImplementedError

    def literal(self, var: Variable) -> _T:
        """Returns the value of a number that stands in an equation."""
        raise NotImplementedError

    def read(
        self,
        block: Block,
        user: Node | Block,
        place: int,
        var: Variable,
        values: dict[Variable, _T],
    ) -> _T:
        """Returns an operand of a node, or a result of a block, by its place there."""
        # A number stands in its equation and has no variable.
        return self.literal(var) if is_literal(var) else values[var]

    def block(self, block: Block, arguments: Sequence[_T]) -> list[_T]:
        """Returns the results of a block."""
        # By variable, since JAX gives each value of a jaxpr one.
        values = self.enter(block, arguments)
        for node in block.nodes:
            self.visit(block, node, values)
        return self.read_all(block, block, block.outputs, values)

    def visit(self, block: Block, node: Node, values: dict[Variable, _T]) -> None:
        """Adds the results of a node to the values of its block."""
        # A subclass may compute under a context, and forget values that nothing uses.
        operands = self.read_all(block, node, node.eqn.invars, values)
        values.update(zip(node.eqn.outvars, self.node(node, operands)))

    def node(self, node: Node, operands: list[_T]) -> Sequence[_T]:
        """Returns the results of a node."""
        # The table is of functions, so that a subclass is read in one place.
        return self.rules[self.form(node)](self, node, operands)

    def read_all(
        self,
        block: Block,
        user: Node | Block,
        variables: Sequence[Variable],
        values: dict[Variable, _T],
    ) -> list[_T]:
        operands: list[_T] = []
        for place, var in enumerate(variables):
            operands.append(self.read(block, user, place, var, values))
        return operands
