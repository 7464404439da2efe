"""Reads a reference: a tree of arrays, a dict of them by path, or a function."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from .._carry.modules import spread
from .._leaves.arguments import shown
from .._leaves.dtypes import kind
from .._leaves.rows import by_path, columns
from .._leaves.types import Aval, Leaf, PyTree

# The path of the only output, where a file or a dict needs one.
ONLY = "out"


def is_function(reference: PyTree, paths: Sequence[str]) -> bool:
    """Whether a reference is a function; a tree of outputs may be callable as well."""
    if not callable(reference):
        return False
    leaves = {} if isinstance(reference, type) else by_path(spread(reference))
    return not any(hasattr(leaves.get(path), "shape") for path in paths)


def arrays_of(
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


def check_function(
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
        return {"" if key == ONLY and "" in paths else key: x for key, x in tree.items()}
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
    return path or ONLY
