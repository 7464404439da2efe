"""Finds what the rule of a derivative has returned: a cotangent, or the one of an int."""

import jax

from .._blame.provenance import of_argument, of_value
from .._blame.why import recorded
from .._leaves.dtypes import is_array
from .._leaves.types import Leaf
from .._source.files import is_users
from .._tracebacks.sites import looked_up
from .arguments import refused_call
from .finding import Failure, Finding, RefusedCall, RefusedLeaf, users_line, width


def find_cotangents(failure: Failure) -> Finding | None:
    """Returns two cotangents of one value that differ in their dtypes.

    JAX adds them up in a backward pass. The rule of a `custom_vjp` is not checked before.
    """
    if not failure.is_of_backward_pass:
        return None
    for frame in failure.frames:
        code = frame.f_code
        if is_users(code.co_filename) or code.co_argcount != 2:
            continue
        values = [frame.f_locals.get(name) for name in code.co_varnames[:2]]
        if all(map(is_array, values)) and values[0].dtype != values[1].dtype:
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
    call = RefusedCall(failure.sites[-1])
    finding = refused_call(call, [leaf, beside])
    headline = "a backward pass adds cotangents of different types."
    return Finding(headline, finding.leaves, call)


def find_gradients_of_ints(failure: Failure) -> Finding | None:
    """Returns the operands of a line that are gradients of ints, which have no numbers."""
    if "float0" not in failure.message or not failure.sites:
        return None
    site = failure.sites[-1]
    leaves = []
    for argument in looked_up(site):
        if getattr(argument.value, "dtype", None) == jax.dtypes.float0:
            why = of_argument(argument, site)
            path = argument.text + argument.name
            leaves.append(RefusedLeaf(len(leaves), path, (argument.value,), why))
    if not leaves:
        return None
    headline = f"{site.name or 'a line'} computes with the gradient of an int."
    return Finding(headline, leaves, RefusedCall(site, has_floats_beside=True))
