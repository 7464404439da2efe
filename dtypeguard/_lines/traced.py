"""The equations behind a tracer, read while JAX is still tracing or after an error.

JAX has no public way to ask for them. This file knows tracers by a few attributes, and each
may be missing in a release: then a value has no equations, and nothing else is lost.
"""

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import NamedTuple

from jax.core import Tracer

from .._leaves.types import Equation, Leaf
from .._program.graph import Graph, Variable
from .record import unwrapped


class TracedValue(NamedTuple):
    """A value that JAX has traced.

    Attributes:
        graph: of the equations that lead to it. It is the only output.
        arguments: the variables that the traced function takes.
        trace: JAX's own, to tell its tracers from those of others.
    """

    graph: Graph
    arguments: list[Variable]
    trace: object

    def is_own(self, value: Leaf) -> bool:
        """Whether a value belongs to the same trace."""
        return getattr(unwrapped(value), "_trace", None) is self.trace


def traced(value: Leaf) -> TracedValue | None:
    """The equations behind a value; None if there are none, or they cannot be read."""
    value = unwrapped(value)
    if not isinstance(value, Tracer):
        return None
    try:
        frame = value._trace.frame  # pyright: ignore[reportAttributeAccessIssue]: of tracers of jaxprs
        output, equations = _behind(value, frame)
        arguments = list(frame.invars)
        constants = dict(frame.constvar_to_val)
        jaxpr = SimpleNamespace(
            constvars=[*constants], invars=arguments, eqns=equations, outvars=[output]
        )
        closed = SimpleNamespace(jaxpr=jaxpr, consts=[*constants.values()])
        graph = Graph(closed)
        return TracedValue(graph, arguments, value._trace)
    except Exception:  # this release keeps them elsewhere
        return None


def _behind(tracer: Leaf, frame: object) -> tuple[Variable, Iterable[Equation]]:
    """The variable of a tracer, and the equations of its trace or those that lead to it."""
    if not hasattr(tracer, "parent"):  # before JAX 0.8 or so
        variables = frame.tracer_to_var  # pyright: ignore[reportAttributeAccessIssue]: of those releases
        return variables[id(tracer)], list(frame.eqns)  # pyright: ignore[reportAttributeAccessIssue]: of those releases
    return tracer.val, [
        SimpleNamespace(
            invars=[operand.val for operand in each.in_tracers],
            outvars=each.outvars,
            primitive=each.primitive,
            params=each.params,
            source_info=each.source_info,
        )
        for each in _parents(tracer)
    ]


def _parents(tracer: Leaf) -> Iterator[Equation]:
    """The equations that lead to a tracer, operands first."""
    done: set[int] = set()
    stack = [(tracer.parent, False)]
    while stack:
        equation, is_complete = stack.pop()
        if is_complete:
            yield equation
        elif equation is not None and id(equation) not in done:
            done.add(id(equation))
            stack.append((equation, True))
            stack += [(operand.parent, False) for operand in equation.in_tracers]
