"""Which outputs are an input with an update, as params after a step are."""

from collections.abc import Sequence

from .._program.graph import Graph

_VALUE_KEEPING = ("convert_element_type", "copy", "optimization_barrier", "select_n")
_ADDS = ("add", "add_any", "sub")


def updated_inputs(graph: Graph, outputs: Sequence[int]) -> dict[int, list[int]]:
    """Returns the inputs to which outputs add something, by the places of both.

    Args:
        graph: of the program.
        outputs: the values of its outputs.
    """

    def changed_operands(value: int) -> list[int]:
        """Returns the values of its shape that a value may be, but for an update."""
        shape = _shape_of(graph, value)
        operands: list[int] = []
        for operand in _operands(graph, value):
            # Params and their update have one shape: none goes through a sum.
            if _shape_of(graph, operand) == shape:
                operands.append(operand)
        return operands

    places: dict[int, list[int]] = {}
    for number, output in enumerate(outputs):
        sums: list[int] = []
        for value in graph.behind([output], changed_operands):
            equation = graph.made_by.get(value)
            if equation is not None and equation.primitive in _ADDS:
                sums.append(value)
        behind = graph.behind(sums, changed_operands)
        added_to = set(behind).intersection(graph.inputs)
        if added_to:
            places[number] = sorted(added_to)
    return places


def _operands(graph: Graph, value: int) -> Sequence[int]:
    """Returns the values that one may be, but for an update."""
    equation = graph.made_by.get(value)
    if equation is None:
        return graph.same_as(value)
    if equation.primitive == "sub":
        return equation.inputs[:1]
    shapes = [_shape_of(graph, operand) for operand in equation.inputs]
    # A decay; the number itself has another shape than params.
    is_decay = equation.primitive == "mul" and () in shapes
    if is_decay or equation.primitive in _VALUE_KEEPING + _ADDS:
        return equation.inputs
    return ()


def _shape_of(graph: Graph, value: int) -> tuple[int, ...] | None:
    return getattr(graph.avals[value], "shape", None)
