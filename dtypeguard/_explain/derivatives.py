"""Finds what is wrong with a derivative: what a rule returned, or ints among its inputs."""

import jax

from .._blame.provenance import of_argument, of_value
from .._blame.why import recorded
from .._leaves.dtypes import dtype_of, is_array, kind
from .._leaves.types import Leaf
from .._source.files import is_users
from .._tracebacks.sites import Site, arguments, looked_up
from .finding import Failure, Finding, RefusedCall, RefusedLeaf, users_line, width


def find_cotangents(failure: Failure) -> Finding | None:
    """Returns two cotangents of one value that differ in their dtypes.

    JAX adds them up in a backward pass. The rule of a `custom_vjp` is not checked before.
    """
    if not failure.is_of_backward_pass:
        return None
    for frame in failure.frames:
        code = frame.f_code
        # The function of JAX that adds two of them, whatever a release calls it.
        if is_users(code.co_filename) or code.co_argcount != 2:
            continue
        values: list[Leaf] = [frame.f_locals.get(name) for name in code.co_varnames[:2]]
        if all(map(is_array, values)) and values[0].dtype != values[1].dtype:
            # Two uses of a value give back its dtype: the wide one is a rule's own.
            narrow, wide = sorted(values, key=lambda value: width(value.dtype))
            return _finding_of_cotangents(failure, narrow, wide)
    return None


def _finding_of_cotangents(failure: Failure, narrow: Leaf, wide: Leaf) -> Finding | None:
    # An equation has the line that called the function with the rule, and not the rule's.
    lines = recorded(wide)
    is_line_of_rule = users_line(lines.origin) != ""
    leaf = RefusedLeaf(
        0,
        "the cotangent",
        (wide,),
        lines if is_line_of_rule else of_value(wide),
        wanted=narrow.dtype if is_line_of_rule else None,
    )
    beside = RefusedLeaf(1, "that beside it", (narrow,), of_value(narrow))
    headline = "a backward pass adds cotangents of different types."
    return Finding(headline, [leaf, beside], RefusedCall(failure.sites[-1]))


def find_gradients_of_ints(failure: Failure) -> Finding | None:
    """Returns the operands of a line that are gradients of ints, which have no numbers."""
    if not failure.sites:
        return None
    site = failure.sites[-1]
    leaves = []
    for argument in looked_up(site):
        # JAX stands them for the gradients of ints.
        if getattr(argument.value, "dtype", None) == jax.dtypes.float0:
            why = of_argument(argument, site)
            path = argument.text + argument.name
            leaves.append(RefusedLeaf(len(leaves), path, (argument.value,), why))
    if not leaves:
        return None
    headline = f"{site.name or 'a line'} computes with the gradient of an int."
    return Finding(headline, leaves, RefusedCall(site, is_of_ints_beside_floats=True))


def differentiated(site: Site) -> set[int]:
    """Returns the positions of the arguments in which a call differentiates, if it does."""
    for frame in site.called_frames:
        numbers = frame.f_locals.get("argnums")
        values = frame.f_locals.get("args")
        if numbers is not None and values:
            numbers = (numbers,) if isinstance(numbers, int) else numbers
            return {number % len(values) for number in numbers}  # -1 is the last
    return set()


def has_floats_beside(site: Site) -> bool:
    """Returns whether what is differentiated has floats.

    A cast of an int beside them could make a parameter of a counter.
    """
    positions = differentiated(site)
    for candidates in arguments(site):
        for argument in candidates:
            is_float = kind(dtype_of(argument.value)) in ("float", "complex")
            if is_float and argument.position in positions:
                return True
    return False
