"""Compares a program with a reference: a tree of arrays, a dict by path, or a function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._carry.modules import spread
from .._leaves.arguments import shown
from .._leaves.dtypes import kind
from .._leaves.key_path import by_path, path_text
from .._leaves.table import and_more, columns
from .._leaves.types import Aval, Leaf, PyTree
from .._numbers.formats import Formats
from .._numbers.subject import Subject, Traced
from .difference import Difference
from .divergence import divergence
from .judge import Judge, RunCall
from .order import OutputOrder

# The path of the only output, where a file or a dict needs one.
_ONLY = "out"
_MOST_ROWS = 10


# The fields of a report that a comparison fills.
_Fields = dict[str, Any]


def comparison(
    reference: PyTree, subject: Subject, traced: Traced, formats: Formats
) -> Callable[[Sequence[Leaf]], _Fields]:
    """Checks a reference, and returns the function that compares the two on some arrays."""
    paths = traced.outputs
    avals = traced.program.out_avals
    order = OutputOrder(traced.program)

    def make_judge(traced_function: Traced, arrays: Sequence[Leaf]) -> Judge:
        call = RunCall(traced_function.program, traced_function.traces, arrays)
        return Judge(call, paths, formats)

    if not _is_function(reference, paths):
        array_of_output = _arrays_of(reference, paths, avals)
        outputs = order.sort(array_of_output)

        def compare_arrays(arrays: Sequence[Leaf]) -> _Fields:
            judge = make_judge(traced, arrays)
            differences = {n: judge.judge_array(n, array_of_output[n]) for n in outputs}
            wrong = [n for n in outputs if differences[n].verdict == "differs"]
            # A device rounds products: it explains nothing that differs before all of them.
            if all(order.follows_product(n) for n in wrong):
                for n in wrong:
                    reason = judge.explain_by_device(n, array_of_output[n])
                    differences[n] = differences[n]._replace(reason=reason)
            return {"differences": tuple(differences.values())}

        return compare_arrays

    function = subject.traced(reference)
    shapes = {path: aval.shape for path, aval in zip(paths, avals)}
    own_avals = function.program.out_avals
    own_shapes = {path: aval.shape for path, aval in zip(function.outputs, own_avals)}
    advice = "Write a function around it that returns the same tree, of the same shapes."
    # Before anything runs, which may take long.
    _check_outputs(f"reference={shown(reference)}", own_shapes, shapes, advice)
    numbers = [n for n, aval in enumerate(avals) if kind(aval.dtype) is not None]

    def compare_functions(arrays: Sequence[Leaf]) -> _Fields:
        judge = make_judge(traced, arrays)
        other_judge = make_judge(function, arrays)
        differences: list[Difference] = []
        wrong: list[int] = []
        # Where another computation begins, all that follows differs: the first output
        # tells.
        for n in order.sort(numbers):
            difference = judge.judge_function(n, other_judge)
            differences.append(difference)
            if difference.verdict == "differs":
                wrong.append(n)
        where = divergence(judge.call, other_judge.call, wrong) if wrong else None
        return {"differences": tuple(differences), "divergence": where}

    return compare_functions


def _is_function(reference: PyTree, paths: Sequence[str]) -> bool:
    """Returns whether a reference is a function; a tree of outputs may be callable too."""
    if not callable(reference):
        return False
    if isinstance(reference, type):  # which makes its object of the arguments
        return True
    leaves = _by_path_text(reference)
    return not any(hasattr(leaves.get(path), "shape") for path in paths)


def _arrays_of(
    reference: PyTree, paths: Sequence[str], avals: Sequence[Aval]
) -> dict[int, np.ndarray]:
    """Returns the arrays of a reference by the numbers of the outputs."""
    leaves = _leaves(reference, paths)
    arrays: dict[int, np.ndarray] = {}
    own_shapes: dict[str, object] = {}
    for path in leaves:
        if path not in paths:
            own_shapes[str(path)] = "given"
    shapes: dict[str, object] = {}
    for n, (path, aval) in enumerate(zip(paths, avals)):
        if kind(aval.dtype) is None:
            continue
        if path in leaves:
            arrays[n] = _array(path, leaves[path], aval)
            own_shapes[path] = arrays[n].shape
        # What a function changes in place may be left out.
        if path in leaves or not path.startswith(("[1]", "[2]")):
            shapes[path] = aval.shape
    first_name = _output_name(next(iter(shapes), ""))
    advice = (
        "Give it a tree shaped as what the function returns, or a dict of arrays by path: "
        f"reference={{{first_name!r}: array, ...}}."
    )
    _check_outputs("a reference", own_shapes, shapes, advice)
    return arrays


def _check_outputs(
    subject: str,
    own_shapes: Mapping[str, object],
    shapes: Mapping[str, object],
    advice: str,
) -> None:
    """Checks the outputs of a reference against those of the function, by path."""
    rows: list[tuple[str, str, str]] = []
    for path in {**shapes, **own_shapes}:
        own_shape = str(own_shapes.get(path, "missing"))
        shape = str(shapes.get(path, "none"))
        if own_shape != shape:
            rows.append((_output_name(path), own_shape, f"the function has {shape}"))
    if not rows:
        return
    head = f"audit_precision got {subject} with other outputs than the function:"
    listed = columns(rows[:_MOST_ROWS])
    listed += and_more(len(rows) - len(listed), "output")
    raise ValueError("\n  ".join([head, *listed]) + f"\n{advice}")


def _leaves(reference: PyTree, paths: Sequence[str]) -> dict[str, Leaf]:
    """Returns the leaves of a reference by path."""
    if "" in paths and not isinstance(reference, Mapping):
        return {"": reference}  # also a list of numbers
    if not isinstance(reference, Mapping):
        return _by_path_text(reference)
    # A dict is the tree itself, or has paths as its keys.
    tree = dict(reference)
    leaves = _by_path_text(tree)
    if not leaves.keys().isdisjoint(paths):
        return leaves
    if "" in paths and _ONLY in tree:
        tree[""] = tree.pop(_ONLY)
    return tree


def _by_path_text(tree: PyTree) -> dict[str, Leaf]:
    return {path_text(path): leaf for path, leaf in by_path(spread(tree)).items()}


def _array(path: str, leaf: Leaf, aval: Aval) -> np.ndarray:
    """Returns a leaf of a reference as an array of numbers."""
    wrong = f"audit_precision got {shown(leaf)} in the reference at {_output_name(path)}"
    try:
        array = np.asarray(leaf)
    except Exception as error:
        raise TypeError(
            f"{wrong}, which NumPy cannot read: {error} Write a NumPy array, for a tensor "
            "of PyTorch tensor.detach().cpu().float().numpy()."
        ) from error
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
