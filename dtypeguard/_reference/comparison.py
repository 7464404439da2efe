"""Compares a program with a reference: a tree of arrays, a dict by path, or a function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .._carry.modules import spread
from .._leaves.arguments import shown
from .._leaves.dtypes import kind
from .._leaves.key_path import by_path, path_text
from .._leaves.quiet import warnings_ignored
from .._leaves.table import columns
from .._leaves.types import Aval, Leaf, PyTree
from .._numbers.formats import Formats
from .._numbers.subject import Subject, Traced
from .divergence import divergence
from .judge import Judge, RunCall, as_wide

# The path of the only output, where a file or a dict needs one.
_ONLY = "out"
# Of a table of what does not fit.
_MOST_ROWS = 10


def comparison(
    reference: PyTree, subject: Subject, traced: Traced, formats: Formats
) -> Callable[[Sequence[Leaf]], dict[str, Any]]:
    """Checks a reference; returns what compares the two on some arrays."""
    paths, avals = traced.outputs, traced.program.out_avals
    given, other = {}, None
    if _is_function(reference, paths):
        other = subject.traced(reference)
        shapes = dict(zip(paths, (x.shape for x in avals)))
        own = dict(zip(other.outputs, (x.shape for x in other.program.out_avals)))
        right = "Write a function around it that returns the same tree, of the same shapes."
        _check(f"reference={shown(reference)}", own, shapes, right)
    else:
        given = _arrays_of(reference, paths, avals)

    def judge(traced: Traced, arrays: Sequence[Leaf]) -> Judge:
        call = RunCall(traced.program, traced.traces, arrays)
        return Judge(call, paths, formats, lambda: _in_float32(subject, call))

    def compare(arrays: Sequence[Leaf]) -> dict[str, Any]:
        mine = judge(traced, arrays)
        if other is None:
            found = (mine.of_array(n, x) for n, x in sorted(given.items()))
            return {"differences": (*found,)}
        theirs = judge(other, arrays)
        numbers = [n for n, x in enumerate(avals) if kind(x.dtype) is not None]
        found = {n: mine.of_function(n, theirs) for n in numbers}
        wrong = [n for n, each in found.items() if each.verdict == "differs"]
        where = divergence(mine.call, theirs.call, wrong) if wrong else None
        return {"differences": (*found.values(),), "divergence": where}

    return compare


def _in_float32(subject: Subject, call: RunCall) -> RunCall | None:
    """A call traced with float32 for what is narrower, with the constants it has there.

    None if there is nothing narrower, or the function does not trace so.
    """
    arrays = [as_wide(x, np.dtype("float32")) for x in call.arrays]
    if all(x is y for x, y in zip(arrays, call.arrays)):
        return None
    try:
        with warnings_ignored():  # the first trace has warned
            again = subject.traced(arrays=arrays)
    except Exception:  # it asks for its dtypes
        return None
    shapes = [[x.shape for x in each.program.out_avals] for each in (again, call)]
    return RunCall(again.program, again.traces, arrays) if shapes[0] == shapes[1] else None


def _is_function(reference: PyTree, paths: Sequence[str]) -> bool:
    """Whether a reference is a function; a tree of outputs may be callable as well."""
    if not callable(reference):
        return False
    leaves = {} if isinstance(reference, type) else _by_path_text(reference)
    return not any(hasattr(leaves.get(path), "shape") for path in paths)


def _arrays_of(
    reference: PyTree, paths: Sequence[str], avals: Sequence[Aval]
) -> dict[int, np.ndarray]:
    """The arrays of a reference by the numbers of the outputs."""
    leaves = _leaves(reference, paths)
    numbered = {path: n for n, path in enumerate(paths) if kind(avals[n].dtype) is not None}
    found = {n: _array(p, leaves[p], avals[n]) for p, n in numbered.items() if p in leaves}
    own: dict[str, object] = {str(p): "given" for p in leaves if p not in paths}
    own |= {paths[n]: array.shape for n, array in found.items()}
    # What a function changes in place may be left out.
    is_needed = lambda path: path in own or not path.startswith(("[1]", "[2]"))
    shapes = {path: avals[n].shape for path, n in numbered.items() if is_needed(path)}
    right = (
        "Give it a tree shaped as what the function returns, or a dict of arrays by path: "
        f"reference={{{_output_name(next(iter(numbered), ''))!r}: array, ...}}."
    )
    _check("a reference", own, shapes, right)
    return found


def _check(
    what: str, own: Mapping[str, object], shapes: Mapping[str, object], right: str
) -> None:
    """Checks what a reference has against what the function has, by path."""
    rows = [
        (
            _output_name(p),
            f"{own.get(p, 'missing')}",
            f"the function has {shapes.get(p, 'none')}",
        )
        for p in dict.fromkeys((*shapes, *own))
        if shapes.get(p) != own.get(p)
    ]
    if rows:
        table = [*columns(rows[:_MOST_ROWS])]
        more = len(rows) - _MOST_ROWS
        table += [f"and {more} more"] * (more > 0)
        raise ValueError(
            f"audit_precision got {what} with other outputs than the function:\n"
            + "".join(f"  {row}\n" for row in table)
            + right
        )


def _leaves(reference: PyTree, paths: Sequence[str]) -> dict[str, Leaf]:
    """The leaves of a reference by path."""
    if "" in paths and not isinstance(reference, Mapping):
        return {"": reference}  # also a list of numbers
    tree = dict(reference) if isinstance(reference, Mapping) else reference
    leaves = _by_path_text(tree)
    if isinstance(tree, dict) and leaves.keys().isdisjoint(paths):
        return {"" if key == _ONLY and "" in paths else key: x for key, x in tree.items()}
    return leaves


def _by_path_text(tree: PyTree) -> dict[str, Leaf]:
    return {path_text(path): leaf for path, leaf in by_path(spread(tree)).items()}


def _array(path: str, leaf: Leaf, aval: Aval) -> np.ndarray:
    wrong = f"audit_precision got {shown(leaf)} in the reference at {_output_name(path)}"
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise TypeError(f"{wrong}, which has no values. Write an array of numbers.")
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
