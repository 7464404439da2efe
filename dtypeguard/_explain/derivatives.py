"""Finds the cotangents that do not agree, and which arguments a call differentiates."""

import numpy as np

from .._blame.provenance import of_value
from .._blame.why import recorded
from .._leaves.dtypes import is_array
from .._leaves.types import Leaf
from .._source.files import is_users
from .._tracebacks.sites import Site
from .finding import Failure, Finding, RefusedLeaf, users_line, width


def find_cotangents(failure: Failure) -> Finding | None:
    """Returns two cotangents of one value that differ in their dtypes.

    JAX adds them up in a backward pass. The rule of a `custom_vjp` is not checked before.
    """
    # JAX has no public function for it: a release that names it otherwise loses a note.
    if not any(x.f_code.co_name.startswith("backward_pass") for x in failure.frames):
        return None
    for frame in failure.frames:
        code = frame.f_code
        # The function of JAX that adds two of them, whatever a release calls it.
        if is_users(code.co_filename) or code.co_argcount != 2:
            continue
        parameters = code.co_varnames[:2]
        values: list[Leaf] = [frame.f_locals.get(name) for name in parameters]
        if all(map(is_array, values)) and values[0].dtype != values[1].dtype:
            # Two uses of a value give back its dtype: the wide one is a rule's own.
            narrow, wide = sorted(values, key=lambda value: width(value.dtype))
            return _finding_of_cotangents(failure, narrow, wide)
    return None


def _finding_of_cotangents(failure: Failure, narrow: Leaf, wide: Leaf) -> Finding:
    lines = recorded(wide)
    wanted = narrow.dtype
    # An equation has the line that called the function with the rule, and not the rule's.
    if not users_line(lines.origin):
        lines = of_value(wide)
        wanted = None
    leaf = RefusedLeaf("the cotangent", (wide,), lines, wanted=wanted)
    beside = RefusedLeaf("that beside it", (narrow,), of_value(narrow))
    headline = "a backward pass adds cotangents of different types."
    return Finding(headline, [leaf, beside], failure.sites[-1])


def differentiated(site: Site) -> set[int]:
    """Returns the positions of the arguments in which a call differentiates, if it does."""
    for frame in site.called_frames:
        numbers = frame.f_locals.get("argnums")
        values = frame.f_locals.get("args")
        if numbers is not None and values:
            positions = np.atleast_1d(numbers) % len(values)  # -1 is the last
            return set(positions.tolist())
    return set()
