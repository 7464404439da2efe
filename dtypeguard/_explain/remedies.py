"""What a note says to write, as records. Nothing here says whether a remedy is right.

`choose.py` has the candidates in their order, and `trial.py` tries those for a loop.
"""

import dataclasses
import math
from collections.abc import Sequence

from .._leaves.cast_text import lost
from .._leaves.dtypes import is_weak, kind
from .._leaves.leaf_type import type_text
from .._leaves.types import DType
from .finding import RefusedLeaf

# Stands in a sentence for the names of the leaves: one sentence may be for several.
NAMES = "{names}"


@dataclasses.dataclass(frozen=True)
class Remedy:
    """Something to write.

    Attributes:
        leaves: the leaf that it is for; all that are guarded.
        line: where it is to be written; empty if no line is known.
        sentence: what to write, with `NAMES` for the leaves and without the line.
        casts_to: the dtypes to which it casts wider values.
        begins: whether a leaf of a loop begins in the type in which it comes back.
            Otherwise what the body returns is cast.
    """

    leaves: Sequence[RefusedLeaf]
    line: str
    sentence: str
    casts_to: frozenset[DType] = frozenset()
    begins: bool = False


def begin_as(leaf: RefusedLeaf, line: str, dtype: DType) -> Remedy:
    """Returns the remedy to begin a leaf in the dtype in which it is needed."""
    type_ = f"{dtype}{lost(leaf.first_dtype, dtype)}"
    if leaf.is_reshaped:
        type_ = type_text(leaf.value)
    return Remedy([leaf], line, f"begin {NAMES} as {type_}", begins=True)


def cast(leaf: RefusedLeaf, line: str, dtype: DType, write: str) -> Remedy:
    """Returns the remedy to cast a leaf, in the words of what is to be written.

    It is not to be rounded at all where a line rounds it: in a sum or an average a leaf
    that is cast back is rounded in each turn, and stalls.
    """
    code = f'.astype("{dtype}"){lost(leaf.dtype, dtype)}'
    if kind(leaf.dtype) == "complex" and kind(dtype) != "complex":
        code = f".real{code}"
    if leaf.branch and is_weak(leaf.value):  # a number has no method to cast it
        code = f'jnp.asarray(..., "{dtype}")'
    sentence = f"{write}: {code}"
    reads_other_types = leaf.why.is_promoted or leaf.place >= 0
    if reads_other_types and leaf.is_narrower_than(dtype):
        sentence = f"keep {NAMES} in {dtype}: a cast back restores no digits"
    return Remedy([leaf], line, sentence, frozenset([dtype]))


def guard_body(
    leaves: Sequence[RefusedLeaf], line: str, what: str, function: str, carry: int
) -> Remedy:
    """Returns the remedy to guard the body of a loop, which casts all leaves back."""
    is_name = function.replace(".", "").isidentifier()
    arguments = "lambda ..."
    if is_name:
        arguments = function
    if carry:
        arguments += f", carry={carry}"
    sentence = f"guard {what}: dtypeguard.guard_step({arguments})"
    return Remedy(leaves, line, sentence, _dtypes_cast_back(leaves))


def guard_optimizer(leaves: Sequence[RefusedLeaf]) -> Remedy:
    """Returns the remedy to guard the optimizer that returns another dtype."""
    sentence = "wrap the optimizer: dtypeguard.guard(opt)"
    return Remedy(leaves, "", sentence, _dtypes_cast_back(leaves))


def _dtypes_cast_back(leaves: Sequence[RefusedLeaf]) -> frozenset[DType]:
    return frozenset(leaf.first_dtype for leaf in leaves if leaf.is_castable)


def give_number(leaf: RefusedLeaf, line: str, dtype: DType) -> Remedy:
    """Returns the remedy to give an int for a float of Python's, else an array."""
    number = leaf.value
    is_for_int = kind(dtype) == "int"
    if is_for_int and isinstance(number, float) and math.isfinite(number):
        # The number itself: `int(x)` at its line would hide that a fraction is lost.
        loss = ""
        if not number.is_integer():
            loss = lost(leaf.dtype, dtype)
        sentence = f"make {NAMES} an int: {int(number)}{loss}"
        return Remedy([leaf], line, sentence)
    sentence = f'give {NAMES} as jnp.asarray({number!r}, "{dtype}")'
    return Remedy([leaf], line, sentence, frozenset([dtype]))


def leave_out_of_grad(leaves: Sequence[RefusedLeaf], line: str) -> Remedy:
    """Returns the remedy to differentiate the floats alone, and not the ints beside."""
    sentence = f"leave {NAMES} out of what is differentiated, and give the floats alone"
    return Remedy(leaves, line, sentence)


def own_arrays(leaves: Sequence[RefusedLeaf], holder: str) -> Remedy:
    """Returns the remedy to donate no array twice."""
    call = f"dtypeguard.strong({holder})"
    sentence = f"before the first call give each leaf an array of its own: {call}"
    return Remedy(leaves, "", sentence)


def wrap_raw_key(leaf: RefusedLeaf) -> Remedy:
    """Returns the remedy to make a typed key of the array of integers that is one."""
    line = leaf.made_at
    if not kind(leaf.dtype):  # it is the key, and its other value the raw one
        line = leaf.begun_at
    return Remedy([leaf], line, f"make {NAMES} a key: jax.random.wrap_key_data(...)")
