"""Which outputs are an input with an update, as params after a step are."""

from collections.abc import Sequence

from .._program.graph import Equation, Graph

_VALUE_KEEPING = frozenset(
    ["convert_element_type", "copy", "optimization_barrier", "select_n"]
)
_ADDS = frozenset(["add", "add_any", "sub"])


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
    waiting = [(output, False)]
    seen: set[tuple[int, bool]] = set()
    inputs: list[int] = []
    while waiting:
        state = waiting.pop()
        value, is_added = state
        # Params and their update have one shape: none goes through a sum or a broadcast.
        if state in seen or _shape_of(graph, value) != shape:
            continue
        seen.add(state)
        if value < len(graph.inputs) and is_added:
            inputs.append(value)
        equation = graph.made_by.get(value)
        if equation is None:
            sources = graph.same.get(value, ())
        else:
            sources = _changed_operands(graph, equation)
            is_added = is_added or equation.primitive in _ADDS
        for source in sources:
            waiting.append((source, is_added))
    return inputs


def _shape_of(graph: Graph, value: int) -> tuple[int, ...] | None:
    return getattr(graph.avals[value], "shape", None)


def _changed_operands(graph: Graph, equation: Equation) -> Sequence[int]:
    """Returns the operands of an equation that its result may be, but for an update."""
    inputs = equation.inputs
    if equation.primitive == "sub":
        return inputs[:1]
    if equation.primitive in _VALUE_KEEPING | _ADDS:
        return inputs
    has_number = not all(_shape_of(graph, value) for value in inputs)
    # A decay; the number itself has another shape than params.
    return inputs if equation.primitive == "mul" and has_number else ()
