"""The equations behind a tracer, read while JAX is still tracing or after an error.

JAX has no public way to ask for them. This file knows tracers by a few attributes, and each
may be missing in a release: then a value has no equations, and nothing else is lost.
"""

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import NamedTuple

from jax.core import Tracer

from .._leaves.dtypes import is_array
from .._leaves.types import Equation, Leaf
from .._program.graph import Graph, Variable
from .._source.origin import Why
from .made import Made
from .monitored import recorder


class TracedValue(NamedTuple):
    """A value that JAX has traced.

    Attributes:
        graph: of the equations that lead to it. It is the only output.
        arguments: the variables that the traced function takes.
        constants: what the function closes over, by variable.
        output: the variable of the value.
        trace: JAX's own, to tell its tracers from those of others.
    """

    graph: Graph
    arguments: list[Variable]
    constants: dict[Variable, Leaf]
    output: Variable
    trace: object

    def is_own(self, value: Leaf) -> bool:
        """Whether a value belongs to the same trace."""
        return getattr(unwrapped(value), "_trace", None) is self.trace

    def value_of(self, variable: Variable) -> Leaf | None:
        """The value of a literal, or of a variable that is closed over."""
        return variable.val if hasattr(variable, "val") else self.constants.get(variable)


def unwrapped(value: Leaf) -> Leaf:
    """The array, or the tracer of a jaxpr, behind tracers of `vmap`, `grad` and `jvp`."""
    while isinstance(value, Tracer):
        inner = getattr(value, "primal", None)
        inner = getattr(value, "val", None) if inner is None else inner
        if not is_array(inner):
            break
        value = inner
    return value


def recorded(value: Leaf) -> Why:
    """The lines behind a value, if `dtypeguard run` saw them run; else none."""
    made = made_of(value)
    return made.why() if made else Why()


def made_of(value: Leaf) -> Made | None:
    """What `dtypeguard run` saw of how a value was made; it does not keep the value."""
    known = recorder()
    found = [known.made(each) for each in (value, unwrapped(value))] if known else []
    return next(filter(None, found), None)


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
            invars=[*constants, *arguments], eqns=equations, outvars=[output]
        )
        graph = Graph(jaxpr, len(arguments))
        return TracedValue(graph, arguments, constants, output, value._trace)
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
