"""Compares a program with a reference: a tree of arrays, a dict by path, or a function."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from .._carry.modules import spread
from .._leaves.arguments import shown
from .._leaves.key_path import by_path, path_text
from .._leaves.table import columns
from .._leaves.types import Aval, Leaf, PyTree
from .._numbers.formats import Formats
from .._numbers.primitives import is_inexact
from .._numbers.subject import Subject, Traced
from .._program.graph import Graph
from .._program.jaxprs import Arrays, value_kind
from .divergence import divergence
from .judge import Judge

# The name of the only output; others have their path as a name.
_ONLY = "out"

# The fields of a report that a comparison fills.
_Fields = dict[str, Any]


def comparison(
    reference: PyTree, subject: Subject, traced: Traced, formats: Formats
) -> Callable[[Arrays], _Fields]:
    """Checks a reference, and returns the function that compares the two on some arrays."""
    names = _names_of(traced)
    avals = _numbers_of(traced)
    function = None
    references = {}
    # Before anything runs, which may take long.
    if _is_function(reference, names):
        function = subject.traced(reference)
        _check_outputs(
            f"reference={shown(reference)}",
            _shapes_of(_numbers_of(function)),
            _shapes_of(avals),
            "Write a function around it that returns the same tree, of the same shapes.",
        )
    else:
        references = _arrays_of(reference, names, avals)
    order = _in_order(traced, avals)

    def compare(arrays):
        judge = Judge(traced, arrays, formats)
        differences = []
        if function is None:
            for n in order:
                name = names[n]
                # What a function changes in place may be left out.
                if name in references:
                    difference = judge.judge_array(n, references[name])
                    differences.append(difference)
            return {"differences": tuple(differences)}
        other_judge = Judge(function, arrays, formats)
        where = None
        for n in order:
            difference, apart = judge.judge_function(n, other_judge)
            differences.append(difference)
            if where is None and difference.verdict == "differs":
                where = divergence(judge, other_judge, n, apart)
        return {"differences": tuple(differences), "divergence": where}

    return compare


def _names_of(function: Traced) -> list[str]:
    """Returns the names of the outputs of a function."""
    return [path or _ONLY for path in function.outputs]


def _numbers_of(function: Traced) -> dict[str, Aval]:
    """Returns the outputs of a function that are numbers, by name."""
    avals = {}
    for name, aval in zip(_names_of(function), function.program.out_avals):
        if value_kind(aval) is not None:
            avals[name] = aval
    return avals


def _shapes_of(arrays: Mapping[str, Aval | np.ndarray]) -> dict[str, str]:
    shapes = {}
    for path, array in arrays.items():
        shapes[path] = str(array.shape)
    return shapes


def _in_order(traced: Traced, names: Collection[str]) -> list[int]:
    """Returns the numbers of some outputs in the order in which a program computes them."""
    # Where another computation begins, all that follows differs: the first output tells.
    graph = Graph(traced.program)
    places = {}
    for n, name in enumerate(_names_of(traced)):
        if name in names:
            output = graph.outputs[n]
            origins = graph.origins(output)
            # Values are numbered in order.
            places[n] = max(origins)
    return sorted(places, key=lambda n: places[n])


def _is_function(reference: PyTree, names: Sequence[str]) -> bool:
    """Returns whether a reference is a function; a tree of outputs may be callable too."""
    if not callable(reference):
        return False
    leaves = _by_path_text(reference)
    return leaves.keys().isdisjoint(names)


def _arrays_of(
    reference: PyTree, names: Sequence[str], avals: Mapping[str, Aval]
) -> dict[str, np.ndarray]:
    """Returns the arrays of a reference by name."""
    arrays = {}
    unknown = {}
    for name, leaf in _leaves(reference, names).items():
        if name in avals:
            aval = avals[name]
            arrays[name] = _array(name, leaf, aval)
        elif name not in names:
            unknown[name] = "given"
    shapes = _shapes_of(avals)
    for name in avals.keys() - arrays.keys():
        # What the function changes in place.
        if name.startswith(("[1]", "[2]")):
            del shapes[name]
    first_name = min(shapes, default=_ONLY)
    advice = (
        "Give it a tree shaped as what the function returns, or a dict of arrays by path: "
        f"reference={{{first_name!r}: array, ...}}."
    )
    shapes_of_reference = _shapes_of(arrays) | unknown
    _check_outputs("a reference", shapes_of_reference, shapes, advice)
    return arrays


def _check_outputs(
    subject: str, own_shapes: Mapping[str, str], shapes: Mapping[str, str], advice: str
) -> None:
    """Checks the outputs of a reference against those of the function, by name."""
    rows = []
    for name in {**shapes, **own_shapes}:
        own_shape = own_shapes.get(name, "missing")
        shape = shapes.get(name, "none")
        if own_shape != shape:
            expected = f"the function has {shape}"
            # Such as an array by itself, where the function returns a dict.
            output = name or "(no path)"
            rows.append((output, own_shape, expected))
    if not rows:
        return
    head = f"audit_precision got {subject} with other outputs than the function:"
    lines = [head, *columns(rows)]
    table = "\n  ".join(lines)
    raise ValueError(f"{table}\n{advice}")


def _leaves(reference: PyTree, names: Sequence[str]) -> dict[str, Leaf]:
    """Returns the leaves of a reference by name."""
    if not isinstance(reference, Mapping):
        # Of the only output also a list of numbers.
        if _ONLY in names:
            return {_ONLY: reference}
        return _by_path_text(reference)
    # A dict is the tree itself, or has names as its keys.
    leaves = _by_path_text(dict(reference))
    if leaves.keys().isdisjoint(names):
        leaves = {}
        for name, leaf in reference.items():
            leaves[str(name)] = leaf
    return leaves


def _by_path_text(tree: PyTree) -> dict[str, Leaf]:
    leaves = {}
    for path, leaf in by_path(spread(tree)).items():
        leaves[path_text(path)] = leaf
    return leaves


def _array(name: str, leaf: Leaf, aval: Aval) -> np.ndarray:
    """Returns a leaf of a reference as an array of numbers."""
    wrong = f"audit_precision got {shown(leaf)} in the reference at {name}"
    array = np.asarray(leaf)
    family = value_kind(array)
    if family is None:
        raise TypeError(
            f"{wrong}. Write an array of numbers, such as x.astype(numpy.float32): files "
            "keep no bfloat16."
        )
    if family == "complex" and value_kind(aval) != "complex":
        raise TypeError(f"{wrong}, which is complex. Write its real part.")
    if not is_inexact(aval):
        return array
    dtype = np.promote_types(aval.dtype, float)
    return array.astype(dtype)
