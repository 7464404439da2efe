"""Which outputs are an input with an update, as params after a step are."""

from collections.abc import Sequence

from .._program.graph import Graph

_VALUE_KEEPING = ("convert_element_type", "copy", "optimization_barrier", "select_n")
_ADDS = ("add", "add_any", "sub")


def updated_inputs(graph: Graph, outputs: Sequence[int]) -> dict[int, int]:
    """Returns the input to which an output adds something, by the places of both.

    Args:
        graph: of the program.
        outputs: the values of its outputs.
    """

    def changed_operands(value: int) -> list[int]:
        """Returns the values of its shape that a value may be, but for an update."""
        shape = _shape_of(graph, value)
        operands = []
        for operand in _operands(graph, value):
            # Params and their update have one shape: none goes through a sum.
            if _shape_of(graph, operand) == shape:
                operands.append(operand)
        return operands

    places = {}
    for number, output in enumerate(outputs):
        has_sum = False
        inputs = []
        for value in graph.behind([output], changed_operands):
            equation = graph.made_by.get(value)
            # An input that comes out as it is has no update.
            has_sum |= equation is not None and equation.primitive in _ADDS
            if value in graph.inputs:
                inputs.append(value)
        if has_sum and inputs:
            # An average of updates comes in as well, from further off than the params.
            places[number] = inputs[0]
    return places


def _operands(graph: Graph, value: int) -> Sequence[int]:
    """Returns the values that one may be, but for an update."""
    equation = graph.made_by.get(value)
    if equation is None:
        return graph.same_as(value)
    if equation.primitive == "sub":
        return equation.inputs[:1]
    if equation.primitive in _VALUE_KEEPING + _ADDS:
        return equation.inputs
    if equation.primitive == "mul":
        shapes = [_shape_of(graph, operand) for operand in equation.inputs]
        # A decay; the number itself has another shape than params.
        if () in shapes:
            return equation.inputs
    return ()


def _shape_of(graph: Graph, value: int) -> tuple[int, ...] | None:
    return getattr(graph.avals[value], "shape", None)
