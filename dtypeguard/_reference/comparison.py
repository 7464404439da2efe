"""Compares a program with a reference: a tree of arrays, a dict by path, or a function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._carry.modules import spread
from .._leaves.arguments import shown
from .._leaves.dtypes import kind
from .._leaves.key_path import by_path, path_text
from .._leaves.table import and_more, columns
from .._leaves.types import Aval, Jaxpr, Leaf, PyTree
from .._numbers.formats import Formats
from .._numbers.subject import Subject, Traced
from .._program.graph import Graph
from .divergence import divergence
from .judge import Judge

# The path of the only output, where a file or a dict needs one.
_ONLY = "out"
_MOST_ROWS = 10


# The fields of a report that a comparison fills.
_Fields = dict[str, Any]


def comparison(
    reference: PyTree, subject: Subject, traced: Traced, formats: Formats
) -> Callable[[Sequence[Leaf]], _Fields]:
    """Checks a reference, and returns the function that compares the two on some arrays."""
    avals = _numbers_of(traced)
    function: Traced | None = None
    array_of_path = {}
    compared_paths = avals.keys()
    # Before anything runs, which may take long.
    if _is_function(reference, traced.outputs):
        function = subject.traced(reference)
        _check_outputs(
            f"reference={shown(reference)}",
            _shapes_of(_numbers_of(function)),
            _shapes_of(avals),
            "Write a function around it that returns the same tree, of the same shapes.",
        )
    else:
        array_of_path = _arrays_of(reference, traced.outputs, avals)
        compared_paths = array_of_path.keys()
    # Where another computation begins, all that follows differs: the first output tells.
    order = [n for n in _in_order(traced.program) if traced.outputs[n] in compared_paths]

    def compare(arrays: Sequence[Leaf]) -> _Fields:
        judge = Judge(traced, arrays, formats)
        if function is None:
            references = {}
            for n in order:
                references[n] = array_of_path[traced.outputs[n]]
            return {"differences": judge.judge_arrays(references)}
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
            where = divergence(judge.call, other_judge.call, wrong)
        return {"differences": tuple(differences), "divergence": where}

    return compare


def _numbers_of(function: Traced) -> dict[str, Aval]:
    """Returns the outputs of a function that are numbers, by path."""
    avals = {}
    for path, aval in zip(function.outputs, function.program.out_avals):
        if kind(aval.dtype) is not None:
            avals[path] = aval
    return avals


def _shapes_of(arrays: Mapping[str, Aval | np.ndarray]) -> dict[str, str]:
    return {path: str(array.shape) for path, array in arrays.items()}


def _in_order(program: Jaxpr) -> list[int]:
    """Returns the numbers of outputs in the order in which a program computes them."""
    graph = Graph(program)

    # Values are numbered in order.
    def place(n: int) -> int:
        return max(graph.origins(graph.outputs[n]))

    return sorted(range(len(graph.outputs)), key=place)


def _is_function(reference: PyTree, paths: Sequence[str]) -> bool:
    """Returns whether a reference is a function; a tree of outputs may be callable too."""
    if not callable(reference):
        return False
    leaves = _by_path_text(reference)
    return not any(hasattr(leaves.get(path), "shape") for path in paths)


def _arrays_of(
    reference: PyTree, paths: Sequence[str], avals: Mapping[str, Aval]
) -> dict[str, np.ndarray]:
    """Returns the arrays of a reference by path."""
    arrays = {}
    unknown = {}
    for path, leaf in _leaves(reference, paths).items():
        if path in avals:
            arrays[path] = _array(path, leaf, avals[path])
        elif path not in paths:
            unknown[path] = "given"
    shapes = _shapes_of(avals)
    for path in avals.keys() - arrays.keys():
        # What a function changes in place may be left out.
        if path.startswith(("[1]", "[2]")):
            del shapes[path]
    first_name = _output_name(min(shapes, default=""))
    advice = (
        "Give it a tree shaped as what the function returns, or a dict of arrays by path: "
        f"reference={{{first_name!r}: array, ...}}."
    )
    _check_outputs("a reference", _shapes_of(arrays) | unknown, shapes, advice)
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
            rows.append((_output_name(path), own_shape, f"the function has {shape}"))
    if not rows:
        return
    head = f"audit_precision got {subject} with other outputs than the function:"
    listed = columns(rows[:_MOST_ROWS])
    listed += and_more(len(rows) - len(listed), "output")
    table = "\n  ".join([head, *listed])
    raise ValueError(f"{table}\n{advice}")


def _leaves(reference: PyTree, paths: Sequence[str]) -> dict[str, Leaf]:
    """Returns the leaves of a reference by path."""
    if not isinstance(reference, Mapping):
        # Of the only output also a list of numbers.
        return {"": reference} if "" in paths else _by_path_text(reference)
    # A dict is the tree itself, or has paths as its keys.
    leaves = _by_path_text(dict(reference))
    if leaves.keys().isdisjoint(paths):
        leaves = {str(path): leaf for path, leaf in reference.items()}
        if "" in paths and _ONLY in leaves:
            leaves[""] = leaves.pop(_ONLY)
    return leaves


def _by_path_text(tree: PyTree) -> dict[str, Leaf]:
    leaves = {}
    for path, leaf in by_path(spread(tree)).items():
        leaves[path_text(path)] = leaf
    return leaves


def _array(path: str, leaf: Leaf, aval: Aval) -> np.ndarray:
    """Returns a leaf of a reference as an array of numbers."""
    wrong = f"audit_precision got {shown(leaf)} in the reference at {_output_name(path)}"
    array = np.asarray(leaf)
    if kind(array.dtype) is None:
        raise TypeError(
            f"{wrong}. Write an array of numbers, such as x.astype(numpy.float32): files "
            "keep no bfloat16."
        )
    is_complex = kind(aval.dtype) == "complex"
    if kind(array.dtype) == "complex" and not is_complex:
        raise TypeError(f"{wrong}, which is complex. Write its real part.")
    return array.astype(np.complex128) if is_complex else array


def _output_name(path: str) -> str:
    return path or _ONLY
