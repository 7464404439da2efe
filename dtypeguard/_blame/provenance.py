"""The lines that gave the values of an error their types: by equations or the record.

JAX has no public way to ask for the equations behind a tracer, which are alive while its
trace is. This file knows tracers by a few attributes, and each may be missing in a release,
as before 0.8: then a value has no equations, and nothing else is lost.
"""

from types import FrameType, SimpleNamespace
from typing import Any

from .._leaves.dtypes import is_python_number
from .._leaves.types import Leaf
from .._program.graph import Graph
from .._recording.values import leaves_given_to_jax
from .._source.files import is_recorded, is_users
from .._source.origin import Origin, Why, callers, origin_of_frame
from .._tracebacks.sites import Argument, Site
from .why import Has, lines_beyond, of_number, recorded, unwrapped, why

# The equations of a trace so far, and by its identity what each variable is there: the
# leaves of a carry are asked about one by one. It is cleared with each note: the rule of a
# derivative among the equations holds its trace.
TRACES_SO_FAR: dict[Any, tuple[Graph, dict[int, int]]] = {}


def of_argument(argument: Argument, site: Site) -> Why:
    """Returns the lines behind an argument of a call."""
    value = argument.value
    source = argument.source
    if not is_python_number(value):
        return of_value(value, site.frame)
    # The record knows numbers by their text and names: they have no identity.
    if source is not None:
        identifier = getattr(source, "id", "")
        return Why(of_number(getattr(source, "attr", identifier), value))
    if not is_recorded(site.file):
        return Why()
    line = origin_of_frame(site.frame, site.line)
    return Why(line)  # which writes it, or computes it


def of_leaf(leaf: Leaf, name: str = "") -> Origin | None:
    """Returns the line that gave a leaf its type, or forced that."""
    if is_python_number(leaf):
        return of_number(name, leaf)
    return of_value(leaf).root


def of_value(value: Leaf, frame: FrameType | None = None) -> Why:
    """Returns the lines that gave an array or a tracer its type.

    Args:
        value: the array or the tracer.
        frame: of a function that has it, for what the function was given by JAX.
    """
    traced = traced_value(value)
    if traced is None:
        return recorded(value)
    graph, number = traced

    def beyond(variable: int) -> Why:
        outer = None
        outer_frame = frame
        if variable in graph.constants:
            # What is closed over may be of an outer trace.
            outer = graph.array(variable)
        elif frame is not None and variable in graph.inputs:
            place = graph.inputs.index(variable)
            trace = unwrapped(value)._trace
            outer, outer_frame = _argument_of_trace(trace, place, frame)
        if outer is not None:
            lines = of_value(outer, outer_frame)
            if lines.origin is not None:
                return lines
        return lines_beyond(graph)(variable)

    matches = Has("dtype", value.dtype)
    lines = why(graph, number, matches, beyond=beyond)
    if lines.origin is None:
        return recorded(value)
    if lines.cause == lines.origin:
        return lines._replace(cause=None)
    return lines


def _argument_of_trace(
    trace: Any, place: int, frame: FrameType
) -> tuple[Leaf | None, FrameType | None]:
    """Returns what JAX was given for an input of a trace, and a frame outside of it."""
    avals = [variable.aval for variable in trace.frame.invars]
    for function in (frame, *callers(frame)):
        leaves = leaves_given_to_jax(function, avals, is_users)
        # A call from the trace itself may have as many arguments of these types.
        traces = [getattr(leaf, "_trace", None) for leaf in leaves]
        if leaves and trace not in traces:
            return leaves[place], function.f_back
    return None, None


def traced_value(value: Leaf) -> tuple[Graph, int] | None:
    """Returns the equations behind a value, and it among them; None if it has none."""
    tracer = unwrapped(value)
    try:
        trace = tracer._trace
        variable = tracer.val
        graph, numbers = TRACES_SO_FAR.get(trace, (None, {}))
        if graph is None or id(variable) not in numbers:
            graph, numbers = _graph_so_far(trace.frame, variable)
            TRACES_SO_FAR[trace] = graph, numbers
        return graph, numbers[id(variable)]
    except Exception:  # no tracer, or this release keeps them elsewhere
        return None


def _graph_so_far(frame: Any, variable: Any) -> tuple[Graph, dict[int, int]]:
    """Returns the graph of a trace that goes on, and the numbers of all its variables."""
    constants = dict(frame.constvar_to_val)
    equations = frame.get_eqns()
    # All are outputs: a note may ask for any of them.
    variables = [variable, *constants, *frame.invars]
    for equation in equations:
        variables += equation.outvars
    jaxpr = SimpleNamespace(
        constvars=list(constants),
        invars=list(frame.invars),
        eqns=equations,
        outvars=variables,
    )
    values = list(constants.values())
    closed = SimpleNamespace(jaxpr=jaxpr, consts=values)
    graph = Graph(closed)
    return graph, dict(zip(map(id, variables), graph.outputs))
