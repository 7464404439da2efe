"""The functions that JAX traces for its control flow, as programs to be asked for lines."""

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from types import CodeType
from typing import Literal, NamedTuple

import numpy as np
from jax import tree_util

from .._carry.call import SplitTree
from .._carry.places import Names
from .._leaves.dtypes import dtype_of, is_array, is_python_number, kind
from .._leaves.paths import parts
from .._leaves.types import Aval, Jaxpr, Leaf, PyTree, Step
from .._program.graph import Graph, open_jaxpr
from .._program.trace import Program, strong_type
from .._source.files import is_installed
from .._source.origin import Origin, Why
from .drift import Drift, find
from .equations import Written
from .lines import ProgramLines
from .provenance import TypeProvenance
from .retrace import Retraced, retrace
from .why import Has

# Leaves that are looked at for one that begins at the same line.
_SOME = 50


class Body(NamedTuple):
    """A function that JAX traces: the body of a loop, its condition, a branch, a loss.

    Attributes:
        function: as JAX was given it.
        inputs: its arguments, or their types.
        carry: the position of the argument that comes back; None if none does.
        is_pair: whether it returns a pair, of which only the first item counts.
        jaxprs: those that may be its own, the likeliest first.
    """

    function: Step
    inputs: tuple[PyTree, ...]
    carry: int | None = None
    is_pair: bool = False
    jaxprs: Sequence[Jaxpr] = ()

    @property
    def code(self) -> CodeType | None:
        """The code of the function, inside of partial ones and of wrappers."""
        function = self.function
        while isinstance(function, functools.partial):
            function = function.func
        return getattr(inspect.unwrap(function), "__code__", None)

    @property
    def globals(self) -> dict[str, PyTree]:
        """The variables of its module that the function names."""
        function = inspect.unwrap(self.function)
        held, code = getattr(function, "__globals__", {}), self.code
        return {x: held[x] for x in (code.co_names if code else ()) if x in held}

    @property
    def name(self) -> str:
        """Its name for the carry."""
        return Names.of(self.function).at(self.carry or 0)

    @property
    def carried(self) -> SplitTree:
        """The types of the carry."""
        return SplitTree(tree_util.tree_map(strong_type, self.inputs[self.carry or 0]))

    def retraced(self) -> Retraced | None:
        """The function, traced again; None if it no longer traces."""
        return retrace(self.function, self.inputs, self.is_pair)

    def retraced_program(self) -> Program | None:
        """The program, traced again; None if it no longer traces."""
        return self._program_of(self.retraced())

    def _program_of(self, retraced: Retraced | None) -> Program | None:
        program = None if retraced is None else self.program(retraced.jaxpr)
        if retraced is None or program is None:
            return None
        return program._replace(returned=(retraced.returned,))

    def lines(
        self, program: Program, begun: Callable[[int], Origin | None] = lambda _: None
    ) -> ProgramLines:
        """What finds the lines behind the values of the program."""
        return ProgramLines(program, self.retraced_program, begun)

    def program(self, jaxpr: Jaxpr) -> Program | None:
        """A jaxpr as a program whose carry comes first; None if it is not the function's.

        A body has the index of a `fori_loop` before its carry, and the slices and results
        of a `scan` behind it.
        """
        graph = Graph(jaxpr, len(tree_util.tree_leaves(self.inputs)))
        if self.carry is None:
            return Program(None, graph)
        carried = self.carried
        count = len(carried.arrays)
        behind = len(tree_util.tree_leaves(self.inputs[self.carry + 1 :]))
        start = len(graph.inputs) - behind - count
        skipped = 0 if self.is_pair else len(graph.outputs) - count
        if start < 0 or skipped < 0 or len(graph.outputs) < count:
            return None
        carry = graph.inputs[start : start + count]
        graph.inputs = carry + [value for value in graph.inputs if value not in carry]
        graph.outputs = graph.outputs[skipped : skipped + count]
        types = [strong_type(graph.avals[value]) for value in graph.outputs]
        returned = SplitTree(carried.merged(types))
        return Program(None, graph, (self.name,), (carried,), (returned,))

    def results(self, provenance: TypeProvenance) -> "Results | None":
        """What it returns, to be asked for lines; None if it no longer traces."""
        retraced = None if self.jaxprs else self.retraced()
        jaxpr = retraced.jaxpr if retraced else next(iter(self.jaxprs), None)
        program = None if jaxpr is None else self.program(jaxpr)
        if program is None:
            return None
        return Results(self, program.step, self.lines(program))

    def drifts(
        self, provenance: TypeProvenance, first: Sequence[Leaf], is_apart: bool
    ) -> Iterator[tuple[Program, Iterator[Drift]]]:
        """What drifts, by each program that may be the body's.

        Args:
            provenance: finds the lines of what the loop was given.
            first: what the inputs of the program are at first.
            is_apart: whether to trace the body again in any case, and begin with that.
        """
        given = functools.partial(self._given, provenance, first)
        begun = [self.name + path for path in self.carried.paths]
        # What runs backwards has the lines of the forward call, unless it is traced apart.
        is_apart = is_apart or not any(map(self._has_lines, self.jaxprs))
        programs = [self.retraced_program()] if is_apart else []
        for program in (*programs, *map(self.program, self.jaxprs)):
            if program is not None:
                lines = self.lines(program, given)
                found = (x for x in find(program, lines) if x.kind in ("dtype", "shape"))
                begins = lambda drift: given(begun.index(drift.path))
                yield program, (dataclasses.replace(x, begun=begins(x)) for x in found)

    def _given(
        self, provenance: TypeProvenance, first: Sequence[Leaf], number: int
    ) -> Origin | None:
        """The line of what an input of the program is at first."""
        if number >= len(first):
            return None
        if is_python_number(first[number]) and self.carry is not None:
            return None
        return provenance.of_leaf(first[number])

    def begun_apart(
        self,
        provenance: TypeProvenance,
        first: Sequence[Leaf],
        drift: Drift,
        drifting: Collection[str],
        is_average: bool = False,
    ) -> Origin | None:
        """The line that gave a first value its type, unless others that stay have it.

        Then the line that made this one: a copy of them, say. None for an array that is
        another one as well, or an average that begins on a line with one of the same name.

        Args:
            provenance: finds the lines of what the loop was given.
            first: what the inputs of the program are at first.
            drift: of the leaf.
            drifting: the paths of all that drift.
            is_average: whether the leaf is an average.
        """
        begun = [self.name + path for path in self.carried.paths]
        number = begun.index(drift.path)
        leaf = first[number] if number < len(first) else None
        made = provenance.of_value(leaf).origin if is_array(leaf) else None
        if drift.begun is None or made is None or is_installed(made.users.file):
            return drift.begun
        stays = [n for n, path in enumerate(begun) if path not in drifting]
        if any(n < len(first) and first[n] is leaf for n in stays):
            return None
        alike = (n for n in stays if dtype_of(first[n]) == dtype_of(leaf))
        some = itertools.islice(alike, _SOME)
        sharing = [n for n in some if self._given(provenance, first, n) == drift.begun]
        key = lambda path: parts(path)[-1]
        is_named = any(key(begun[n]) == key(drift.path) for n in sharing)
        if is_average and is_named and made == drift.begun:
            return None
        return made if sharing else drift.begun

    def _has_lines(self, jaxpr: Jaxpr) -> bool:
        """Whether the lines in a jaxpr are those of the function."""
        code, equations = self.code, open_jaxpr(jaxpr).eqns
        return (
            code is None
            or not equations
            or any(Written((x,)).passes(code) for x in equations)
        )


class Results(NamedTuple):
    """The results of a function that JAX traced.

    Attributes:
        body: the function.
        graph: of its equations.
        lines: finds the lines behind its results.
    """

    body: Body
    graph: Graph
    lines: ProgramLines

    def aval(self, number: int) -> Aval:
        """The abstract value of a result."""
        return self.graph.avals[self.graph.outputs[number]]

    def of(self, number: int, kind: str = "dtype") -> Why:
        """The lines that gave a result its dtype or its shape."""
        matches = Has(kind, getattr(self.aval(number), kind, None))
        every_input = (1 << len(self.graph.inputs)) - 1
        return self.lines.of(self.graph.outputs[number], matches, every_input)

    def unchanged(self, number: int) -> tuple[bool, bool, Leaf | None]:
        """What is returned unchanged as a result.

        Returns:
            Whether that is an argument, whether it is a constant or closed over, and the
            value; None where it is neither, or where the function no longer traces.
        """
        output, inputs = self.graph.outputs[number], self.graph.inputs
        if output in inputs:
            leaves = tree_util.tree_leaves(self.body.inputs)
            return True, False, leaves[inputs.index(output)]
        is_constant = output in self.graph.constants
        retraced = self.body.retraced() if is_constant else None
        return False, is_constant, retraced and retraced.results[number]

    def whole(self, number: int) -> int | None:
        """The Python int that a result is, be it that of a jitted function inside."""
        graph, value = self.graph, self.graph.outputs[number]
        for _ in range(_SOME):
            value = graph.same[value][0] if len(graph.same.get(value, ())) == 1 else value
        aval, known = graph.avals[value], graph.values.get(value)
        is_weak = getattr(aval, "weak_type", False) and kind(dtype_of(aval)) == "int"
        return int(known) if is_weak and known is not None else None


def difference(before: Leaf, after: Leaf) -> Literal["dtype", "shape"] | None:
    """What differs between two leaves, as loops and branches see it; None if nothing."""
    if getattr(before, "dtype", None) != getattr(after, "dtype", None):
        return "dtype"
    return "shape" if np.shape(before) != np.shape(after) else None
