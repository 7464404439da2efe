"""The lines that gave the values of an error their types: by equations or the record.

JAX has no public way to ask for the equations behind a tracer, which are alive while its
trace is. This file knows tracers by a few attributes, and each may be missing in a release,
as before 0.8: then a value has no equations, and nothing else is lost.
"""

from types import SimpleNamespace
from typing import Any

from .._leaves.dtypes import is_python_number
from .._leaves.types import Leaf
from .._program.graph import Graph
from .._recording.values import is_concrete
from .._source.files import is_recorded
from .._source.origin import Origin, Why, origin_of_frame
from .._source.syntax import evaluated
from .._tracebacks.sites import Argument, Site
from .why import Has, of_number, recorded, unwrapped, why


def of_argument(argument: Argument, site: Site) -> Why:
    """The lines behind an argument of a call."""
    value, source = argument.value, argument.source
    if is_python_number(value) and source is not None:
        name = getattr(source, "attr", getattr(source, "id", ""))
        return Why(of_number(name, value))
    if is_python_number(value):  # the line writes it, or computes it
        is_own = is_recorded(site.file)
        return Why(origin_of_frame(site.frame, site.line) if is_own else None)
    users: Any = evaluated(source, site.frame) if argument.is_whole else None
    if is_concrete(users) and users.dtype == value.dtype:
        value = users  # JAX may have converted it
    return of_value(value)


def of_leaf(leaf: Leaf, name: str = "") -> Origin | None:
    """The line that gave a leaf its type, or forced that; of a number by its name."""
    return of_number(name, leaf) if is_python_number(leaf) else of_value(leaf).root


def of_value(value: Leaf) -> Why:
    """The lines that gave an array or a tracer its type."""
    traced, lines = traced_value(unwrapped(value)), Why()
    if traced is not None:
        lines = why(*traced, Has("dtype", value.dtype))
        if lines.cause == lines.origin:
            lines = lines._replace(cause=None)
    return lines if lines.origin else recorded(value)


# The equations of a trace so far, and by its identity what each variable is there: the
# leaves of a carry are asked about one by one. It is cleared with each note: the rule of a
# derivative among the equations holds its trace.
TRACES_SO_FAR: dict[Any, tuple[Graph, dict[int, int]]] = {}


def traced_value(tracer: Leaf) -> tuple[Graph, int] | None:
    """The equations behind a value, and it among them; None if they cannot be read."""
    try:
        trace, variable = tracer._trace, tracer.val
        graph, places = TRACES_SO_FAR.get(trace, (None, {}))
        if graph is None or id(variable) not in places:
            frame = trace.frame
            constants, equations = dict(frame.constvar_to_val), frame.get_eqns()
            first, invars = [*constants], [*frame.invars]
            known = [variable, *first, *invars]
            known += [x for each in equations for x in each.outvars]
            jaxpr = SimpleNamespace(
                constvars=first, invars=invars, eqns=equations, outvars=known
            )
            graph = Graph(SimpleNamespace(jaxpr=jaxpr, consts=[*constants.values()]))
            places = dict(zip(map(id, known), graph.outputs))
            TRACES_SO_FAR[trace] = graph, places
        return graph, places[id(variable)]
    except Exception:  # no tracer, or this release keeps them elsewhere
        return None
