"""Traces a step and makes its lock: computations by function, types by path."""

import functools
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .._carry.call import Call
from .._carry.carry import carry_of
from .._costs.costs import input_names
from .._leaves.compat import check_release, set_x64
from .._leaves.dtypes import is_weak
from .._leaves.types import Step
from .._lines.path_text import parts
from .._program.trace import Program, trace
from .._source.files import is_installed, short_path
from .computations import Computation, Function, LockEntry, code_of, computations

Types = dict[str, str]
INPUTS, OUTPUTS = TABLES = "inputs", "outputs"
_INDEX = re.compile(r"\[\d+\]")
# A path, or a part of one, with `*` for numbers.
fold = functools.partial(re.compile(r"\d+").sub, "*")


class TypedLeaf(NamedTuple):
    """A leaf of the inputs or outputs, its type and its number in the graph."""

    path: str
    name: str  # of the type, `bfloat16` or `weak float32`
    value: int


class Lock(NamedTuple):
    """What a step computes in: its calls by function, and types by path."""

    step: str  # its file and its name
    functions: dict[Function, list[LockEntry]]
    inputs: Types
    outputs: Types


class TracedStep(NamedTuple):
    """A step, traced: its lock, its calls in order, and its leaves by the lock's tables."""

    lock: Lock
    computations: list[Computation]
    leaves: dict[str, list[TypedLeaf]]


def lock_of(
    step: Step,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    path: str | None,
    x64: bool | None = None,
    owner: str = "lock",
) -> TracedStep:
    """Traces a step and reads what it computes in; files are named as seen from a path."""
    check_release(owner)
    with set_x64(x64), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the program warns when it runs
        carry = carry_of(owner, step).without_arguments()
        program = trace(lambda: Call(step, carry, args, dict(kwargs)))
    folder = os.path.dirname(os.path.abspath(path or "lock"))
    name_of = functools.partial(name_of_file, folder=folder)
    name, code = carry.step, code_of(step)
    if code is not None:
        name = f"{name_of(code.co_filename)}:{code.co_qualname.replace('<locals>.', '')}"
    found = computations(program.step, code, name_of)
    functions: dict[Function, list[LockEntry]] = {}
    for each in found:
        if each.entries:
            functions.setdefault(each.function, []).extend(dict.fromkeys(each.entries))
    leaves = _leaves(program, step)
    types = {table: grouped(each) for table, each in leaves.items()}
    return TracedStep(Lock(name, functions, **types), found, leaves)


def name_of_file(file: str, folder: str) -> str:
    """A file relative to a folder, or that of a package by the name of the package."""
    if is_installed(file):
        return short_path(file).replace(os.sep, "/")
    try:
        return os.path.relpath(file, folder).replace(os.sep, "/")
    except ValueError:  # on another drive
        return file.replace(os.sep, "/")


def _leaves(program: Program, step: Step) -> dict[str, list[TypedLeaf]]:
    """Inputs and outputs; objects that are changed in place are both."""
    graph = program.step
    of_objects = lambda trees: [
        name + path for name, x in zip(program.names, trees) for path in x.paths
    ]
    typed = lambda paths, values: [
        TypedLeaf(path, f"{'weak ' * is_weak(x := graph.avals[n])}{x.dtype}", n)
        for path, n in zip(paths, values)
    ]
    given = input_names(step, program.rest.paths)
    made = [f"result{path}" for path in program.others.paths]
    return {
        INPUTS: typed([*of_objects(program.carried), *given], graph.inputs),
        OUTPUTS: typed([*of_objects(program.returned), *made], graph.outputs),
    }


_Rest = tuple[str, ...]  # of a path


def grouped(leaves: Iterable[TypedLeaf]) -> Types:
    """Types by path: one line for all below a node that are alike.

    Numbers are `*`: `params['layer_3'][0]` is `params['layer_*'][*]`. Indices stay where
    no two of them hold the same, as in `(params, opt_state)`.
    """
    found: Types = {}

    def visit(prefix: str, below: list[tuple[_Rest, str]]) -> None:
        names = {name for _, name in below}
        ending = {name for rest, name in below if not rest}
        if ending or (prefix and len(names) == 1):
            found[prefix] = ", ".join(sorted(ending or names))
        if prefix and len(names) == 1:
            return
        inside: dict[str, list[tuple[_Rest, str]]] = {}
        for rest, name in below:
            if rest:
                inside.setdefault(rest[0], []).append((rest[1:], name))
        shapes = [
            frozenset((*map(fold, rest), name) for rest, name in x) for x in inside.values()
        ]
        is_kept = len(inside) > 1 and len({*shapes}) == len(shapes)
        merged: dict[str, list[tuple[_Rest, str]]] = {}
        for part, children in inside.items():
            is_same = not prefix or (is_kept and _INDEX.fullmatch(part))
            merged.setdefault(part if is_same else fold(part), []).extend(children)
        for part, children in merged.items():
            visit(prefix + part, children)

    visit("", [(_split(leaf.path), leaf.name) for leaf in leaves])
    return found


def _split(path: str) -> _Rest:
    first, *rest = parts(path) or [path]
    if first == "result" and rest and _INDEX.fullmatch(rest[0]):  # items that differ
        first, *rest = first + rest[0], *rest[1:]
    return (first, *rest)


def covering(types: Iterable[str], path: str) -> tuple[str, str]:
    """The path in a lock that covers a leaf, and the rest of the leaf's; "" for none."""
    raw = _split(path)
    for size in range(len(raw), 0, -1):
        head = "".join(raw[:size])
        if fit := [each for each in types if _pattern(each).fullmatch(head)]:
            return min(fit, key=lambda each: each.count("*")), "".join(raw[size:])
    return "", path


@functools.lru_cache(10_000)
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.escape(path).replace(r"\*", r"(\d+|\*)"))
