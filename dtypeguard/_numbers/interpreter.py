"""The way through a program by a plan: one equation after another."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from .._leaves.types import Equation, Leaf
from .nodes import Block, Node


class Interpreter:
    """Runs the blocks of a program.

    What runs them here measures: eager, with probes. What runs them traced, equation by
    equation as it stands, is `autocast`.

    Attributes:
        rules: by the rule of a node, what computes it.
    """

    rules: ClassVar[dict[str, Callable[..., Sequence[Any]]]]

    def entered_block(self, block: Block, given: Sequence[Any]) -> list[Any]:
        """The values of the constants and the inputs of a block."""
        raise NotImplementedError

    def literal(self, var: Leaf, meant: float | None) -> Any:
        """The value of a number that stands in an equation."""
        raise NotImplementedError

    def context(self, eqn: Equation) -> contextlib.AbstractContextManager[object]:
        """What an equation is computed under."""
        raise NotImplementedError

    def kept(
        self, block: Block, node: Node, values: Sequence[Any], made: Sequence[Any]
    ) -> Sequence[Any]:
        """The results of an equation as they are kept until they are used."""
        return made

    def block(self, block: Block, given: Sequence[Any]) -> list[Any]:
        """The results of a block."""
        known = dict(zip(block.inputs, self.entered_block(block, given)))

        def read(var: Any, meant: float | None) -> Any:
            is_literal = hasattr(var, "val")
            return self.literal(var, meant) if is_literal else known[var]

        for node in block.nodes:
            with self.context(node.eqn):
                values = [read(v, node.meant.get(n)) for n, v in enumerate(node.eqn.invars)]
                made = self.rules[node.rule](self, node, values)
                made = self.kept(block, node, values, made)
                known |= zip(node.eqn.outvars, made)
            for var in node.last:
                known.pop(var, None)
        return [read(v, block.meant.get(n)) for n, v in enumerate(block.outputs)]
