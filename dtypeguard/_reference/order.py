"""The outputs of a program in the order in which it computes them."""

from collections.abc import Iterable

from .._leaves.types import Jaxpr
from .._program.graph import Graph
from .._program.jaxprs import PRODUCTS


class OutputOrder:
    """The order of the outputs of a program.

    Args:
        program: its closed jaxpr.
    """

    def __init__(self, program: Jaxpr):
        self._graph = Graph(program)

    def sort(self, outputs: Iterable[int]) -> list[int]:
        """Returns the numbers of outputs in the order of the program."""
        return sorted(outputs, key=self._place)

    def _place(self, output: int) -> int:
        # Values are numbered in order.
        return max(self._graph.origins(self._graph.outputs[output]))

    def follows_product(self, output: int) -> bool:
        """Returns whether an output depends on a product or a convolution."""
        graph = self._graph
        for value in graph.behind([graph.outputs[output]], graph.sources):
            equation = graph.made_by.get(value)
            if equation is not None and equation.primitive in PRODUCTS:
                return True
        return False
