"""Second stage: finds the leaves that JAX refuses, and the lines behind their types."""

import re
from collections.abc import Callable

from .._leaves.types import Aval
from .._lines.provenance import TypeProvenance
from .arguments import find_arguments, find_compiled, find_named, find_result
from .branches import find_in_branches
from .derivatives import find_added, find_tangent, is_pulled_back
from .devices import find_lowered, find_unsupported
from .finding import Finding
from .loops import find_in_loop
from .messages import added, compiled_for, is_of_rule
from .read import Failure


def find(failure: Failure) -> Finding | None:
    """The leaves that an error is about; None if it finds none."""
    found = _find(failure)
    return found and found._replace(sites=failure.sites)


def _find(failure: Failure) -> Finding | None:
    if failure.lowered is not None:
        return find_lowered(failure.lowered)
    if failure.unsupported is not None:
        return find_unsupported(failure, failure.unsupported)
    provenance, about = TypeProvenance(failure.frames, failure.sites), failure.complaint
    if about is not None and is_pulled_back(failure):
        return find_added(failure, about.types, provenance)
    if about is not None:
        of = find_result if about.role.is_result else find_arguments
        return of(failure, about, provenance)
    if meant := compiled_for(failure.message):
        return find_compiled(failure, meant, provenance)

    def is_meant(*avals: Aval) -> bool:
        return all(_is_named(str(aval.dtype), failure.message) for aval in avals)

    for call in failure.control_flow:
        in_call: Callable[..., Finding | None] = find_in_branches
        if call.is_loop:
            in_call = find_in_loop
        if finding := in_call(call, provenance, is_meant):
            return finding
    if is_of_rule(failure.message):
        return find_tangent(failure, provenance)
    if len(types := added(failure.message)) == 2:
        return find_added(failure, types, provenance)
    return find_named(failure, provenance) if failure.types else None


def _is_named(dtype: str, message: str) -> bool:
    """Whether a message names a dtype, in full like JAX or abbreviated like Equinox."""
    short = re.sub(r"(loat|nt|omplex)(?=\d)", "", dtype.replace("uint", "u"))
    return dtype in message or short in message
