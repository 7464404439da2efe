"""The lines behind a leaf that a compiled function gave back in another type.

When JAX compiles a function, its jaxpr is at hand. It is kept open, without arrays, to be
asked later: no function of the user's is traced again.
"""

import ast
import itertools
import re
from collections.abc import Mapping, Sequence
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from .._leaves.dtypes import is_python_number, is_weak
from .._leaves.rows import Type, type_of
from .._leaves.types import Jaxpr, Leaf, PyTree
from .._program.graph import Graph, open_jaxpr
from .._source.files import is_users
from .._source.origin import Origin, Why
from .._source.syntax import expression
from .fed import Fed, parameter, returned_as, words
from .numbers import number_line
from .record import recorded
from .sites import Site
from .why import Ends, Has, line_of, why

# What the jaxprs that are kept may have: equations of one, equations of all, and bytes of
# constants that are written in one.
MOST_EQUATIONS, ALL_EQUATIONS, _MOST_BYTES = 50_000, 500_000, 1_000_000


class KeptProgram(NamedTuple):
    """The program of a compiled function, without its arrays.

    Attributes:
        jaxpr: open.
        arguments: the paths of its arguments; empty where they are not known.
        names: what to find an argument by among the results.
        results: the names of its results: `result[0]['w']`.
        size: how many equations it has.
    """

    jaxpr: Jaxpr
    arguments: Sequence[str]
    names: Sequence[str]
    results: Sequence[str]
    size: int

    def returned(self, leaves: Mapping[str, tuple[int, Leaf]]) -> dict[str, int]:
        """The results that have come back as leaves of a later call, by path.

        Args:
            leaves: those whose type has changed, by path, with the positions of their
                arguments.
        """
        avals = [variable.aval for variable in self.jaxpr.outvars]
        is_like = lambda aval, leaf: (
            type_of(aval) == type_of(leaf) and aval.shape == np.shape(leaf)
        )
        fed: dict[str, str] = {}
        asked: list[Fed] = []
        for path, name in zip(self.arguments, self.names):
            if path in leaves:
                position, leaf = leaves[path]
                like = [n for n, aval in enumerate(avals) if is_like(aval, leaf)]
                asked.append(Fed(name, position, like))
                fed[name] = path
        found = returned_as(asked, self.results)
        return {fed[name]: number for name, number in found.items()}

    def item_of(self, result: int) -> int | None:
        """The item of the tuple that the function returns, if it does, with a result."""
        found = re.match(r"result\[(\d+)\]", self.results[result])
        return int(found[1]) if found else None


def kept(
    jaxpr: Jaxpr | None, types: Mapping[str, Type], wrapper: str = ""
) -> KeptProgram | None:
    """What to keep of a jaxpr; None if that is too large or has no names.

    Args:
        jaxpr: of a compiled function.
        types: of the leaves that are traced, by path.
        wrapper: the package that jitted the function for the user.
    """
    inside = open_jaxpr(jaxpr)
    info: Any = getattr(inside, "debug_info", None)
    known = [getattr(info, each, None) for each in ("arg_names", "result_paths")]
    if inside is None or not all(isinstance(each, (tuple, list)) for each in known):
        return None
    names, results = (list(map(str, each or ())) for each in known)
    size = _size(inside, MOST_EQUATIONS)
    if size is None or len(results) != len(inside.outvars):
        return None
    arguments = names
    if not types.keys() >= set(names):  # Equinox and Flax give them names of their own
        arguments = list(types)
        if wrapper == "flax":  # which sorts the leaves of each argument
            parameters = [*dict.fromkeys(map(parameter, types))]
            place = lambda path: (parameters.index(parameter(path)), words(path))
            arguments = sorted(types, key=place)
        avals = [variable.aval for variable in inside.invars]
        avals = [type_of(aval) or Type(str(aval.dtype)) for aval in avals]  # of keys
        if avals != [types[path] for path in arguments]:
            arguments = [""] * len(avals)
    if wrapper == "equinox":  # its own function returns a marker as well
        results = [name.replace("result[1]", "result", 1) for name in results]
    names = names if wrapper == "flax" else arguments
    return KeptProgram(_stripped(inside), arguments, names, results, size)


def _stripped(jaxpr: Jaxpr) -> Jaxpr:
    """A jaxpr without the arrays that it and those inside of it have as constants."""
    equations = list(jaxpr.eqns)
    for number, equation in enumerate(equations):
        params = {name: _without_arrays(x) for name, x in equation.params.items()}
        if any(new is not equation.params[name] for name, new in params.items()):
            names = "primitive", "invars", "outvars", "source_info"
            known = {name: getattr(equation, name) for name in names}
            equations[number] = SimpleNamespace(**known, params=params)
    parts = {
        name: list(getattr(jaxpr, name)) for name in ("constvars", "invars", "outvars")
    }
    return SimpleNamespace(**parts, eqns=equations)


def _without_arrays(param: Any) -> Any:
    """A parameter of an equation; where its jaxprs have arrays, without these."""
    if type(param) in (tuple, list):
        items = [_without_arrays(each) for each in param]
        is_same = all(new is old for new, old in zip(items, param))
        return param if is_same else type(param)(items)
    inside = open_jaxpr(param)
    if not hasattr(inside, "eqns"):
        return param
    held = [x for x in getattr(param, "consts", ()) if np.ndim(x)]
    stripped = _stripped(inside)
    pairs = zip(stripped.eqns, inside.eqns)
    if not held and all(new is old for new, old in pairs):
        return param
    return SimpleNamespace(jaxpr=stripped, consts=[None] * len(stripped.constvars))


def _size(jaxpr: Jaxpr, most: int) -> int | None:
    """The equations of a jaxpr and those inside; None if it is too large."""
    size, bytes_, queue = 0, 0, [jaxpr]
    for each in queue:
        each = open_jaxpr(each)
        size += len(each.eqns)
        for equation in each.eqns:
            literals = [x.val for x in equation.invars if hasattr(x, "val")]
            bytes_ += sum(getattr(value, "nbytes", 0) for value in literals)
            for value in equation.params.values():
                inside = value if type(value) in (tuple, list) else (value,)
                queue += [x for x in inside if hasattr(open_jaxpr(x), "eqns")]
        if size > most or bytes_ > _MOST_BYTES:
            return None
    return size


class CompiledLines(Ends):
    """Finds the lines in a program that was kept, while its function is compiled again.

    Args:
        program: of the earlier call.
        again: the new jaxpr, whose constants are those of the earlier one.
        given: the leaves of the new call, by path.
    """

    def __init__(
        self, program: KeptProgram, again: Jaxpr | None, given: Mapping[str, Leaf]
    ):
        inside = program.jaxpr
        consts = getattr(again, "consts", ())
        if len(consts) != len(inside.constvars):
            consts = ()
        self._graph = Graph(SimpleNamespace(jaxpr=inside, consts=consts))
        self._names, self._results = program.arguments, program.results
        self._given = given

    def of_result(self, number: int, path: str, before: Type) -> Why:
        """The lines that gave a result a type that the leaf of a path did not have.

        Args:
            number: of the result.
            path: of the leaf that came in.
            before: its type.
        """
        graph = self._graph
        inputs = range(len(graph.inputs))
        own = [n for n in inputs if self._names[n : n + 1] == [path]]
        own = own or [n for n in inputs if type_of(graph.avals[n]) == before]
        output = graph.outputs[number]
        aval = graph.avals[output]
        line = line_of(graph.made_by.get(output)) if self._is_of_another(number) else None
        if line is not None:  # it has its type by right
            return Why(line)
        matches = Has("dtype", aval.dtype)
        if before.name == str(aval.dtype):
            matches = Has("weak_type", is_weak(aval))
        return why(graph, output, matches, sum(1 << n for n in own), self)

    def _is_of_another(self, number: int) -> bool:
        """Whether a result is the value of another one that came in with its type."""
        graph = self._graph
        output, type_ = graph.outputs[number], type_of(graph.avals[graph.outputs[number]])
        inputs = zip(self._names, graph.inputs)
        own = [words(name)[1:] for name, x in inputs if type_of(graph.avals[x]) == type_]
        return any(
            value == output
            and other != number
            and any(x and name[-len(x) :] == x for x in own)
            for other, value in enumerate(graph.outputs)
            for name in [words(self._results[other])]
        )

    def given(self, number: int) -> Why:
        return Why(recorded(self._given.get(self._names[number])).root)


def caller_of(frames: Sequence[FrameType]) -> list[Site]:
    """The user's line that led to the first of some frames, which is of JAX."""
    for inside, user in itertools.pairwise(frames):
        if is_users(user.f_code.co_filename):
            node = expression(user.f_code, user.f_lasti)
            return [Site(user, user.f_lineno, node, [inside])]
    return []


def first_line(
    frame: FrameType, place: int | None, name: str, value: PyTree
) -> Origin | None:
    """The line that made an argument of the current call, or wrote it as a number.

    Args:
        frame: of the caller.
        place: the position of the argument.
        name: of the parameter.
        value: the argument.
    """
    if not is_python_number(value):
        return recorded(value).root
    call = expression(frame.f_code, frame.f_lasti)
    named = {x.arg: x.value for x in call.keywords} if isinstance(call, ast.Call) else {}
    source = named.get(name)
    if isinstance(call, ast.Call) and source is None and place is not None:
        source = next(iter(call.args[place : place + 1]), None)
    return number_line(source, frame, value)
