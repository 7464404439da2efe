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

# The path of the only output, where a file or a dict needs one.
_ONLY = "out"


# The fields of a report that a comparison fills.
_Fields = dict[str, Any]


def comparison(
    reference: PyTree, subject: Subject, traced: Traced, formats: Formats
) -> Callable[[Arrays], _Fields]:
    """Checks a reference, and returns the function that compares the two on some arrays."""
    avals = _numbers_of(traced)
    # Before anything runs, which may take long.
    if _is_function(reference, traced.outputs):
        function = subject.traced(reference)
        _check_outputs(
            f"reference={shown(reference)}",
            _shapes_of(_numbers_of(function)),
            _shapes_of(avals),
            "Write a function around it that returns the same tree, of the same shapes.",
        )
        order = _in_order(traced, avals)

        def compare_function(arrays):
            judge = Judge(traced, arrays, formats)
            other_judge = Judge(function, arrays, formats)
            differences = []
            wrong = []
            for n in order:
                difference = judge.judge_function(n, other_judge)
                differences.append(difference)
                if difference.verdict == "differs":
                    wrong.append(n)
            where = None
            if wrong:
                where = divergence(judge, other_judge, wrong)
            return {"differences": tuple(differences), "divergence": where}

        return compare_function
    array_of_path = _arrays_of(reference, traced.outputs, avals)
    references = {}
    for n in _in_order(traced, array_of_path):
        path = traced.outputs[n]
        references[n] = array_of_path[path]

    def compare_arrays(arrays):
        judge = Judge(traced, arrays, formats)
        return {"differences": judge.judge_arrays(references)}

    return compare_arrays


def _numbers_of(function: Traced) -> dict[str, Aval]:
    """Returns the outputs of a function that are numbers, by path."""
    avals = {}
    for path, aval in zip(function.outputs, function.program.out_avals):
        if value_kind(aval) is not None:
            avals[path] = aval
    return avals


def _shapes_of(arrays: Mapping[str, Aval | np.ndarray]) -> dict[str, str]:
    shapes = {}
    for path, array in arrays.items():
        shapes[path] = str(array.shape)
    return shapes


def _in_order(traced: Traced, paths: Collection[str]) -> list[int]:
    """Returns the numbers of some outputs in the order in which a program computes them."""
    # Where another computation begins, all that follows differs: the first output tells.
    graph = Graph(traced.program)
    places = {}
    for n, path in enumerate(traced.outputs):
        if path in paths:
            output = graph.outputs[n]
            origins = graph.origins(output)
            # Values are numbered in order.
            places[n] = max(origins)
    return sorted(places, key=lambda n: places[n])


def _is_function(reference: PyTree, paths: Sequence[str]) -> bool:
    """Returns whether a reference is a function; a tree of outputs may be callable too."""
    if not callable(reference):
        return False
    # A function is a leaf itself, at the path of an only output.
    leaves = _by_path_text(reference).keys() - {""}
    return leaves.isdisjoint(paths)


def _arrays_of(
    reference: PyTree, paths: Sequence[str], avals: Mapping[str, Aval]
) -> dict[str, np.ndarray]:
    """Returns the arrays of a reference by path."""
    arrays = {}
    unknown = {}
    for path, leaf in _leaves(reference, paths).items():
        if path in avals:
            aval = avals[path]
            arrays[path] = _array(path, leaf, aval)
        elif path not in paths:
            unknown[path] = "given"
    shapes = _shapes_of(avals)
    for path in avals.keys() - arrays.keys():
        # What a function changes in place may be left out.
        if path.startswith(("[1]", "[2]")):
            del shapes[path]
    first_path = min(shapes, default="")
    first_name = _output_name(first_path)
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
    """Checks the outputs of a reference against those of the function, by path."""
    rows = []
    for path in {**shapes, **own_shapes}:
        own_shape = own_shapes.get(path, "missing")
        shape = shapes.get(path, "none")
        if own_shape != shape:
            name = _output_name(path)
            expected = f"the function has {shape}"
            rows.append((name, own_shape, expected))
    if not rows:
        return
    head = f"audit_precision got {subject} with other outputs than the function:"
    lines = [head, *columns(rows)]
    table = "\n  ".join(lines)
    raise ValueError(f"{table}\n{advice}")


def _leaves(reference: PyTree, paths: Sequence[str]) -> dict[str, Leaf]:
    """Returns the leaves of a reference by path."""
    if not isinstance(reference, Mapping):
        # Of the only output also a list of numbers.
        if "" in paths:
            return {"": reference}
        return _by_path_text(reference)
    # A dict is the tree itself, or has paths as its keys.
    leaves = _by_path_text(dict(reference))
    if leaves.keys().isdisjoint(paths):
        leaves = {}
        for path, leaf in reference.items():
            leaves[str(path)] = leaf
        if _ONLY in leaves:
            leaves[""] = leaves.pop(_ONLY)
    return leaves


def _by_path_text(tree: PyTree) -> dict[str, Leaf]:
    leaves = {}
    for path, leaf in by_path(spread(tree)).items():
        leaves[path_text(path)] = leaf
    return leaves


def _array(path: str, leaf: Leaf, aval: Aval) -> np.ndarray:
    """Returns a leaf of a reference as an array of numbers."""
    name = _output_name(path)
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


def _output_name(path: str) -> str:
    if path:
        return path
    return _ONLY
