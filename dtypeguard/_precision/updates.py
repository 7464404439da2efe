"""Which outputs are an input with an update, as params after a step are."""

from collections.abc import Sequence

from .._program.graph import Graph

# What keeps a value, up to its dtype; without a name what crosses the boundary of a loop.
_VALUE_KEEPING = (None, "convert_element_type", "copy", "optimization_barrier", "select_n")
_ADDS = ("add", "add_any", "sub")


def updated_inputs(graph: Graph, outputs: Sequence[int]) -> dict[int, list[int]]:
    """Returns the inputs to which outputs add something, by the places of both.

    Args:
        graph: of the program.
        outputs: the values of its outputs.
    """
    shapes = [getattr(aval, "shape", None) for aval in graph.avals]
    primitives = {value: node.name for value, node in graph.made_by.items()}

    def changed_operands(value: int) -> list[int]:
        """Returns the values of its shape that a value may be, but for an update."""
        operands = graph.sources(value)
        primitive = primitives.get(value)
        # A decay; the number itself has another shape than params.
        is_decay = primitive == "mul" and () in [shapes[x] for x in operands]
        if primitive == "sub":
            operands = operands[:1]
        elif primitive not in _VALUE_KEEPING + _ADDS and not is_decay:
            operands = ()
        # Params and their update have one shape: none goes through a sum.
        return [operand for operand in operands if shapes[operand] == shapes[value]]

    places = {}
    for number, output in enumerate(outputs):
        sums = [
            value
            for value in graph.behind([output], changed_operands)
            if primitives.get(value) in _ADDS
        ]
        added_to = set(graph.behind(sums, changed_operands)).intersection(graph.inputs)
        if added_to:
            places[number] = sorted(added_to)
    return places
