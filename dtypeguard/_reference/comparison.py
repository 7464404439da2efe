"""Compares a program with a reference: reads and checks it, and says what it is.

A reference is a tree of arrays, a dict of them by path, or a function.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .._carry.modules import spread
from .._leaves.arguments import shown
from .._leaves.dtypes import bits, kind
from .._leaves.rows import by_path, columns
from .._leaves.types import Aval, Function, Leaf, PyTree
from .._numbers.formats import Formats
from .._numbers.subject import Subject, Traced
from .divergence import divergence
from .reference import Judge
from .rounding import RunCall

# The path of the only output, where a file or a dict needs one.
_ONLY = "out"


def comparison(
    reference: PyTree, subject: Subject, traced: Traced, formats: Formats
) -> Callable[[Sequence[Leaf]], dict[str, Any]]:
    """Checks a reference; returns what compares the two on some arrays."""
    paths, avals = traced.outputs, traced.program.out_avals
    given, other = {}, None
    if subject.given.arrays and _is_function(reference, paths) and _takes_none(reference):
        reference = reference()
    if _is_function(reference, paths):
        other = _traced(subject, reference)
        outputs = zip(other.outputs, other.program.out_avals)
        _check_function(reference, [*zip(paths, avals)], [*outputs])
    else:
        is_result = [not path.startswith(("[1]", "[2]")) for path in paths]
        given = _arrays_of(reference, paths, avals, is_result)

    functions = [(subject.f, traced)] + ([] if other is None else [(reference, other)])

    def compare(arrays: Sequence[Leaf]) -> dict[str, Any]:
        as_given = [RunCall(x.program, x.numbers, arrays) for _, x in functions]
        wider = [_in_float32(subject, *each, arrays) for each in functions]
        calls = [c._replace(in_float32=w) for c, w in zip(as_given, wider)]
        judges = [Judge(call, paths, formats) for call in calls]
        # In float32 on both sides, if both are the same functions there.
        is_one_alone = len({each is None for each in wider}) > 1
        if is_one_alone or any(judge.is_another_in_float32() for judge in judges):
            calls = as_given
            judges = [Judge(call, paths, formats) for call in calls]
        if other is None:
            found = [judges[0].of_array(n, x) for n, x in sorted(given.items())]
            return {"differences": (*found,)}
        numbers = [n for n, x in enumerate(avals) if kind(x.dtype) is not None]
        found = {n: judges[0].of_function(n, judges[1]) for n in numbers}
        wrong = [n for n, each in found.items() if each.verdict == "differs"]
        where = divergence(calls[0], calls[1], wrong) if wrong else None
        return {"differences": (*found.values(),), "divergence": where}

    return compare


def _takes_none(reference: Function) -> bool:
    """Whether a function has no parameters: then it gives the arrays."""
    try:
        return not inspect.signature(reference).parameters
    except (TypeError, ValueError):  # of an object that shows no signature
        return False


def _in_float32(
    subject: Subject, function: Function, traced: Traced, arrays: Sequence[Leaf]
) -> RunCall | None:
    """A call with what is narrower than float32 in it; None if it does not trace so."""
    is_narrow = lambda x: 0 < bits(x.dtype) < 32
    if not any(map(is_narrow, arrays)):
        return None
    wider = [x.astype(np.float32) if is_narrow(x) else x for x in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first trace has warned
        try:
            again = subject.traced(function, wider)
        except Exception:  # it asks for its dtypes
            return None
    shapes = lambda traced: [x.shape for x in traced.program.out_avals]
    is_same = shapes(again) == shapes(traced)
    return RunCall(again.program, again.numbers, wider) if is_same else None


def _traced(subject: Subject, reference: Function) -> Traced:
    try:
        return subject.traced(reference)
    except Exception as error:
        error.add_note(
            f"That is reference={shown(reference)}, called with the arguments of "
            f"{shown(subject.f)}."
        )
        raise


def _is_function(reference: PyTree, paths: Sequence[str]) -> bool:
    """Whether a reference is a function; a tree of outputs may be callable as well."""
    if not callable(reference):
        return False
    leaves = {} if isinstance(reference, type) else by_path(spread(reference))
    return not any(hasattr(leaves.get(path), "shape") for path in paths)


def _arrays_of(
    reference: PyTree,
    paths: Sequence[str],
    avals: Sequence[Aval],
    is_result: Sequence[bool],
) -> dict[int, np.ndarray]:
    """The arrays of a reference by the numbers of the outputs."""
    leaves = _leaves(reference, paths)
    numbered = {path: n for n, path in enumerate(paths) if kind(avals[n].dtype) is not None}
    found = {n: _array(p, leaves[p], avals[n]) for p, n in numbered.items() if p in leaves}
    own = {path: found[numbered[path]].shape for path in leaves if path in numbered}
    own |= {str(path): "given" for path in leaves if path not in paths}
    shapes = {p: avals[n].shape for p, n in numbered.items() if is_result[n] or p in own}
    right = (
        "Give it a tree shaped as what the function returns, or a dict of arrays by path: "
        f"reference={{{_name(next(iter(numbered), ''))!r}: array, ...}}."
    )
    bad = [n for n, x in found.items() if x.shape != avals[n].shape]
    if bad and shapes.keys() == own.keys():
        right = _reshaped(paths[bad[0]], found[bad[0]], avals[bad[0]])
    _check("a reference", own, shapes, right)
    return found


def _check_function(
    reference: PyTree,
    outputs: Sequence[tuple[str, Aval]],
    others: Sequence[tuple[str, Aval]],
) -> None:
    """Checks that a reference returns what the function returns, but for its dtypes."""
    shapes, own = ({p: x.shape for p, x in each} for each in (outputs, others))
    right = "Write a function around it that returns the same tree, of the same shapes."
    _check(f"reference={shown(reference)}", own, shapes, right)


def _check(
    what: str, own: Mapping[str, object], shapes: Mapping[str, object], right: str
) -> None:
    """Checks what a reference has against what the function has, by path."""
    rows = [
        (_name(p), f"{own.get(p, 'missing')}", f"the function has {shapes.get(p, 'none')}")
        for p in dict.fromkeys((*shapes, *own))
        if shapes.get(p) != own.get(p)
    ]
    if rows:
        more = [f"and {len(rows) - 10} more"] * (len(rows) > 10)
        table = "\n".join(f"  {row}" for row in [*columns(rows[:10]), *more])
        raise ValueError(
            f"audit_precision got {what} with other outputs than the function:\n{table}\n"
            f"{right}"
        )


def _leaves(reference: PyTree, paths: Sequence[str]) -> dict[str, Leaf]:
    """The leaves of a reference by path."""
    if "" in paths and not isinstance(reference, Mapping):
        return {"": reference}  # also a list of numbers
    tree = dict(reference) if isinstance(reference, Mapping) else reference
    leaves = by_path(spread(tree))
    if isinstance(tree, dict) and leaves.keys().isdisjoint(paths):
        return {"" if key == _ONLY and "" in paths else key: x for key, x in tree.items()}
    return leaves


def _array(path: str, leaf: Leaf, aval: Aval) -> np.ndarray:
    wrong = f"audit_precision got {shown(leaf)} in the reference at {_name(path)}"
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


def _reshaped(path: str, array: np.ndarray, aval: Aval) -> str:
    """What to write for an array of another shape."""
    mine = f"reference{path}" if path.startswith(("[", ".")) or not path else "array"
    if array.T.shape == aval.shape:
        return f"Write {mine}.T for it."
    if array.size == np.prod(aval.shape, dtype=int):
        return f"Write {mine}.reshape({aval.shape}) for it, or transpose it."
    return "Give it the reference for the same inputs."


def _name(path: str) -> str:
    return path or _ONLY
