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
_RIGHT = (
    "Give it a tree shaped as what the function returns, or a dict of arrays by path: "
    "reference={%r: array, ...}."
)


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
    wrong = [(_name(str(path)), "no output") for path in leaves if path not in paths]
    is_missing = lambda path: is_result[numbered[path]] and path not in leaves
    wrong = [(_name(path), "missing") for path in numbered if is_missing(path)] + wrong
    if wrong:
        right = _RIGHT % _name(next(iter(numbered), ""))
        raise ValueError(
            "audit_precision got a reference of another tree than the outputs:\n"
            f"{_table(wrong)}\n{right}"
        )
    found = {n: _array(p, leaves[p], avals[n]) for p, n in numbered.items() if p in leaves}
    bad = [n for n, x in found.items() if x.shape != avals[n].shape]
    if bad:
        says = "the output has"
        rows = [
            (_name(paths[n]), f"{found[n].shape}", f"{says} {avals[n].shape}") for n in bad
        ]
        raise ValueError(
            "audit_precision got a reference of other shapes than the outputs:\n"
            f"{_table(rows)}\n{_reshaped(paths[bad[0]], found[bad[0]], avals[bad[0]])}"
        )
    return found


def check_function(
    reference: PyTree,
    outputs: Sequence[tuple[str, Aval]],
    others: Sequence[tuple[str, Aval]],
) -> None:
    """Checks that a reference returns what the function returns, but for its dtypes."""
    shapes, own = ({p: x.shape for p, x in each} for each in (outputs, others))
    rows = [
        (_name(p), f"{own.get(p, 'missing')}", f"the function has {shapes.get(p, 'none')}")
        for p in dict.fromkeys((*shapes, *own))
        if shapes.get(p) != own.get(p)
    ]
    if rows:
        raise ValueError(
            f"audit_precision got reference={shown(reference)}, which returns other "
            f"outputs than the function:\n{_table(rows)}\nWrite a function around it that "
            "returns the same tree of arrays of the same shapes."
        )


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    more = [f"and {len(rows) - 10} more"] * (len(rows) > 10)
    return "\n".join(f"  {row}" for row in [*columns(rows[:10]), *more])


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
    name = _name(path)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise TypeError(
            f"audit_precision got a reference without values at {name}: give it arrays."
        )
    try:
        array = np.asarray(leaf)
    except Exception as error:
        is_torch = type(leaf).__module__.partition(".")[0] == "torch"
        write = "tensor.detach().cpu().float().numpy()" if is_torch else "a NumPy array"
        raise TypeError(
            f"audit_precision cannot read the reference at {name}: {error} Write {write}."
        ) from error
    if kind(array.dtype) is None:
        is_void = array.dtype.type is np.void
        why = ", such as x.astype(numpy.float32): files keep no bfloat16" if is_void else ""
        raise TypeError(
            f"audit_precision got {shown(leaf)} in the reference at {name}. Write an array "
            f"of numbers{why}."
        )
    if kind(array.dtype) == "complex" and kind(aval.dtype) != "complex":
        raise TypeError(
            f"audit_precision got complex numbers in the reference at {name}, which is "
            f"{aval.dtype}. Write its real part."
        )
    return array.astype(np.complex128) if kind(aval.dtype) == "complex" else array


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
