"""The lines of source behind what an analysis finds in a program."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jax import tree_util

from .._carry.call import SplitTree
from .._leaves.dtypes import is_weak
from .._leaves.types import Aval, PyTree
from .blame import blame, source
from .graph import Equation, Graph
from .origins import Origin, origin_of
from .watch import Watch

# Watching costs half as much again as tracing. Where there are more leaves than this it
# is done in a second trace, and only if a constant turns up.
_FEW = 50


def is_small(tree: PyTree) -> bool:
    """Whether a tree has so few leaves that its first trace is watched."""
    return len(tree_util.tree_leaves(tree)) <= _FEW


class Traced(Protocol):
    """What the lines are of: see `Program`."""

    @property
    def first(self) -> Graph | None: ...
    @property
    def step(self) -> Graph: ...
    @property
    def carried(self) -> Sequence[SplitTree]: ...
    @property
    def returned(self) -> Sequence[SplitTree]: ...


class Lines:
    """Finds the lines of source behind a program.

    Args:
        program: as it was traced.
        watch: what watched that trace; None if nothing did.
        again: traces the program once more, for a constant whose maker is asked for.
        bound: finds the line where a part of a given carry got its name.
    """

    def __init__(
        self,
        program: Traced,
        watch: Watch | None,
        again: Callable[[], Traced],
        bound: Callable[[Any], Origin | None] = lambda _: None,
    ):
        self._program = self._watched = program
        self._watch = watch
        self._again = again
        self._bound = bound

    def of(
        self, output: int, matches: Callable[[Aval], bool], leaves: int
    ) -> dict[str, Origin | None]:
        """The origin and the cause of a property of an output of the step.

        Args:
            output: the value in the step's graph.
            matches: whether an abstract value has the property, the new dtype for example.
            leaves: the inputs that the output continues, as the bits of an integer.
        """
        graph = self._program.step
        if output in graph.constants:
            return {"origin": self._of_constant(graph.outputs.index(output))}
        found = blame(graph, output, matches, leaves)
        cause = line_of(found.cause)
        if cause is not None and found.constant:
            cause = self._watching().maker(cause, matches)
        return {"origin": line_of(found.promotion), "cause": cause}

    def of_weak_leaf(self, number: int) -> Origin | None:
        """The line that made a leaf of the first carry weak."""
        first = self._program.first
        if first is not None:
            made = line_of(source(first, first.outputs[number], is_weak))
            if made is not None:
                return made
        self._watching()
        nodes = _nodes(self._watched.carried, number)
        return self._made(nodes) or next(filter(None, map(self._bound, nodes)), None)

    def _of_constant(self, number: int) -> Origin | None:
        """The line that made an output of the step that no equation makes."""
        self._watching()
        return self._made(_nodes(self._watched.returned, number))

    def _made(self, nodes: Sequence[Any]) -> Origin | None:
        return next(filter(None, map(self._watching().made, nodes)), None)

    def _watching(self) -> Watch:
        if self._watch is None:
            self._watch = Watch()
            with self._watch:
                self._watched = self._again()
        return self._watch


def _nodes(trees: Sequence[SplitTree], number: int) -> Sequence[Any]:
    """An array leaf of some trees, and the nodes that it is in, from the inside out."""
    for parts in trees:
        if number < len(parts.arrays):
            return parts.arrays[number], *parts.holders(number)
        number -= len(parts.arrays)
    return ()


def has(name: str, value: Any) -> Callable[[Aval], bool]:
    """Whether an abstract value has this dtype or shape."""
    return lambda aval: getattr(aval, name, None) == value


def line_of(equation: Equation | None) -> Origin | None:
    """The line of an equation, if there is one."""
    return None if equation is None else origin_of(equation.stack)
