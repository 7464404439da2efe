"""The one walk through a program: its calls, loops, branches, shards and solvers."""

import itertools
from collections.abc import Sequence
from typing import Generic, TypeVar

from .._leaves.types import Aval, Leaf
from .jaxprs import Variable, is_literal
from .program import WHILE, Block, Node, User, split_operands

_T = TypeVar("_T")


class Walk(Generic[_T]):
    """One way through a program, for a domain: numbers, traced values, dtypes, and so on.

    A domain says what it knows of constants, what an equation makes of its operands, and
    what a value is that may be one of several. As in `ast.NodeVisitor`, the method with the
    name of its rule visits a node: `visit_scan`, say. Without one the node is computed.
    """

    # What a domain says

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

    def crossing(self, value: _T, aval: Aval) -> _T:
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
        operands = []
        for place, var in enumerate(variables):
            operand = self.read(user, place, var, values)
            operands.append(operand)
        return operands

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

    def visit_call(self, node: Node, operands: list[_T], /) -> Sequence[_T]:
        return self.block(node.inner[0], operands)

    def visit_custom_linear_solve(self, node: Node, operands: list[_T], /) -> Sequence[_T]:
        # The operands of the matrix, of its transpose, of the solver, of the solver of the
        # transpose, and the right-hand side.
        lengths = node.eqn.params["const_lengths"]
        first = lengths.matvec + lengths.vecmat
        last = first + lengths.solve
        of_solver = operands[first:last]
        right_hand_side = operands[sum(lengths) :]
        return self.block(node.inner[0], [*of_solver, *right_hand_side])

    def visit_cond(self, node: Node, operands: list[_T], /) -> Sequence[_T]:
        _, *arguments = operands  # the first is the number of the branch
        branches = []
        for block in node.inner:
            branch_results = self.inside(block, arguments)
            branches.append(branch_results)
        results = []
        for values in zip(*branches):
            result = self.joined(values, 0)
            results.append(result)
        return self.left(node, results)

    def visit_shard_map(self, node: Node, operands: list[_T], /) -> Sequence[_T]:
        results = self.inside(node.inner[0], operands)
        return self.left(node, results)

    def visit_scan(self, node: Node, operands: list[_T], /) -> Sequence[_T]:
        body = node.inner[0]
        of_condition, shared, first, scanned = split_operands(node.eqn, operands)
        carry = self.left(node, first)
        # What the body returns comes in again, until nothing new does.
        results = []
        for attempt in itertools.count(1):
            arguments = [*shared, *carry, *scanned]
            results = self.inside(body, arguments)
            carry_after = []
            for values in zip(carry, results):
                value = self.joined(values, attempt)
                carry_after.append(value)
            if carry_after == carry:
                break
            carry = carry_after
        if node.rule == WHILE:
            # The condition sees the carry as the last turn leaves it.
            arguments = [*of_condition, *carry]
            self.condition(node.inner[1], arguments)
        rows = results[len(carry) :]
        leaving = [*carry, *rows]
        return self.left(node, leaving)

    visit_while = visit_scan

    def condition(self, block: Block, arguments: list[_T]) -> None:
        """Walks through the condition of a loop."""
        self.inside(block, arguments)

    def inside(self, block: Block, arguments: Sequence[_T]) -> list[_T]:
        """Returns the results of a body, of a condition, of a branch or of shards."""
        return self.block(block, arguments)

    def left(self, node: Node, values: list[_T], /) -> list[_T]:
        """Returns what leaves a loop, branches or shards, or comes round in a loop."""
        crossed = []
        for value, var in zip(values, node.eqn.outvars):
            result = self.crossing(value, var.aval)
            crossed.append(result)
        return crossed
