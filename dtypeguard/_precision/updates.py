"""Which outputs are an input with an update, as params after a step are."""

from collections.abc import Sequence

from .._program.graph import Equation, Graph

_VALUE_KEEPING = ("convert_element_type", "copy", "optimization_barrier", "select_n")
_ADDS = ("add", "add_any", "sub")


def updated_inputs(graph: Graph, outputs: Sequence[int]) -> dict[int, list[int]]:
    """Returns the inputs to which outputs add something, by the places of both.

    Args:
        graph: of the program.
        outputs: the values of its outputs.
    """
    places: dict[int, list[int]] = {}
    for number, value in enumerate(outputs):
        inputs = _inputs_added_to(graph, value)
        if inputs:
            places[number] = inputs
    return places


def _inputs_added_to(graph: Graph, output: int) -> list[int]:
    """Returns the inputs of its shape to which an output adds, maybe in turns of a loop."""
    shape = _shape_of(graph, output)
    # Values, and whether the output adds something to them.
    states = [(output, False)]
    seen = set(states)
    for value, is_added in states:  # which grows
        equation = graph.made_by.get(value)
        if equation is None:
            sources = graph.same.get(value, ())
        else:
            sources = _changed_operands(graph, equation)
            is_added = is_added or equation.primitive in _ADDS
        for source in sources:
            state = (source, is_added)
            # Params and their update have one shape: none goes through a sum.
            if state not in seen and _shape_of(graph, source) == shape:
                seen.add(state)
                states.append(state)
    return [value for value, is_added in states if is_added and value in graph.inputs]


def _shape_of(graph: Graph, value: int) -> tuple[int, ...] | None:
    return getattr(graph.avals[value], "shape", None)


def _changed_operands(graph: Graph, equation: Equation) -> Sequence[int]:
    """Returns the operands of an equation that its result may be, but for an update."""
    inputs = equation.inputs
    if equation.primitive == "sub":
        return inputs[:1]
    has_number = not all(_shape_of(graph, value) for value in inputs)
    # A decay; the number itself has another shape than params.
    is_decay = equation.primitive == "mul" and has_number
    return inputs if is_decay or equation.primitive in _VALUE_KEEPING + _ADDS else ()
