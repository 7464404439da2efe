"""The one walk through a program: its calls, loops, branches, shards and solvers."""

import itertools
from collections.abc import Sequence
from typing import Generic, TypeVar

from .._leaves.types import Leaf
from .jaxprs import Variable, is_literal
from .program import COND, WHILE, Block, Node, User, split_operands

_T = TypeVar("_T")


class Walk(Generic[_T]):
    """One way through a program, for a domain: numbers, traced values, dtypes, and so on.

    A domain says what it knows of constants, what an equation makes of its operands, and
    what a value is that may be one of several. As in `ast.NodeVisitor`, the method with the
    name of its rule visits a node: `visit_scan`, say. Without one the node is computed.
    """

    # What a domain says

    # Whether it asks for what tells how often a `while` loop turns.
    has_conditions = True

    def constant(self, var: Variable, array: Leaf) -> _T:
        """Returns an array, or a number, that the program holds."""
        raise NotImplementedError

    def computed(self, node: Node, operands: list[_T], /) -> Sequence[_T]:
        """Returns the results of an equation that has no blocks."""
        raise NotImplementedError

    def joined(self, values: Sequence[_T], attempt: int) -> _T:
        """Returns the value that may be any of several.

        Args:
            values: what branches return; or what comes into a body, and what it returns.
            attempt: how often the body was walked; 0 of branches.
        """
        raise NotImplementedError

    def crossing(self, value: _T, var: Variable) -> _T:
        """Returns a value that is carried by a loop, or leaves one, branches or shards."""
        return value

    # The way through a program

    def block(self, block: Block, arguments: Sequence[_T]) -> list[_T]:
        """Returns the results of a block."""
        # By variable, since JAX gives each value of a jaxpr one.
        values = self.enter(block, arguments)
        for node in block.nodes:
            self.add_results(node, values)
        return self.read_all(block, block.outputs, values)

    def enter(self, block: Block, arguments: Sequence[_T]) -> dict[Variable, _T]:
        """Returns the first values of a block, by variable."""
        values = {}
        for var, array in block.consts.items():
            values[var] = self.constant(var, array)
        values.update(zip(block.arguments, arguments))
        return values

    def add_results(self, node: Node, values: dict[Variable, _T]) -> None:
        """Adds the results of a node to the values of its block."""
        eqn = node.eqn
        # A subclass may compute under a context.
        operands = self.read_all(node, eqn.invars, values)
        results = self.node(node, operands)
        values.update(zip(eqn.outvars, results))
        # A value is gone as soon as nothing needs it: programs fill memory.
        for var in node.last:
            values.pop(var, None)

    def read_all(
        self,
        user: User,
        variables: Sequence[Variable],
        values: dict[Variable, _T],
    ) -> list[_T]:
        places = enumerate(variables)
        return [self.read(user, place, var, values) for place, var in places]

    def read(self, user: User, place: int, var: Variable, values: dict[Variable, _T]) -> _T:
        """Returns an operand of a node, or a result of a block, by its place there."""
        if is_literal(var):
            # A number stands in its equation and has no variable.
            return self.constant(var, var.val)
        return values[var]

    def node(self, node: Node, operands: list[_T], /) -> Sequence[_T]:
        """Returns the results of a node."""
        name = f"visit_{node.rule}"
        visit = getattr(self, name, self.computed)
        return visit(node, operands)

    # Nodes with blocks

    def visit_call(self, node: Node, operands: list[_T], /):
        return self.block(node.inner[0], operands)

    def visit_custom_linear_solve(self, node: Node, operands: list[_T], /):
        # The operands of the matrix, of its transpose, of the solver, of the solver of the
        # transpose, and the right-hand side.
        lengths = node.eqn.params["const_lengths"]
        first = lengths.matvec + lengths.vecmat
        last = first + lengths.solve
        arguments = operands[first:last] + operands[sum(lengths) :]
        return self.block(node.inner[0], arguments)

    def visit_cond(self, node: Node, operands: list[_T], /):
        # Shards have one body, and no number that tells which is taken.
        arguments = operands
        if node.rule == COND:
            arguments = operands[1:]
        branches = [self.inside(block, arguments) for block in node.inner]
        results = [self.joined(values, 0) for values in zip(*branches)]
        return self.left(node, results)

    visit_shard_map = visit_cond

    def visit_scan(self, node: Node, operands: list[_T], /):
        body = node.inner[0]
        of_condition, shared, first, scanned = split_operands(node.eqn, operands)
        carry = self.left(node, first)
        # What the body returns comes in again, until nothing new does.
        results = []
        for attempt in itertools.count(1):
            arguments = [*shared, *carry, *scanned]
            results = self.inside(body, arguments)
            carry_after = [self.joined(values, attempt) for values in zip(carry, results)]
            if carry_after == carry:
                break
            carry = carry_after
        if node.rule == WHILE and self.has_conditions:
            # The condition sees the carry as the last turn leaves it.
            arguments = [*of_condition, *carry]
            self.inside(node.inner[1], arguments)
        rows = results[len(carry) :]
        leaving = [*carry, *rows]
        return self.left(node, leaving)

    visit_while = visit_scan

    def inside(self, block: Block, arguments: Sequence[_T]) -> list[_T]:
        """Returns the results of a body, of a condition, of a branch or of shards."""
        return self.block(block, arguments)

    def left(self, node: Node, values: list[_T], /) -> list[_T]:
        """Returns what leaves a loop, branches or shards, or comes round in a loop."""
        return [self.crossing(value, var) for value, var in zip(values, node.eqn.outvars)]
