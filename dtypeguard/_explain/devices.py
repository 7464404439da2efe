"""What JAX traces and cannot lower: 16 bits in LAPACK, a part with another x64 flag."""

from typing import Any

import jax.numpy as jnp

from .._leaves.compat import x64_enabled
from .._leaves.dtypes import dtype_of
from .._leaves.types import DType
from .._lines.equations import Written
from .._source.origin import Why, origin_at, origin_of_frame
from .finding import Finding, RefusedCall, RefusedLeaf
from .messages import Lowered
from .read import Failure


def find_lowered(lowered: Lowered) -> Finding:
    """What JAX has traced with x64 on, and compiles with x64 off."""
    line = origin_at(lowered.file, lowered.line, "")
    types = lowered.types if x64_enabled() else lowered.types[::-1]
    leaf = RefusedLeaf(0, lowered.name, types, Why(line))
    headline = f"{lowered.name} was traced with x64 on in a part of the program alone."
    return Finding(headline, [leaf], RefusedCall(None, "lowered"))


def find_unsupported(failure: Failure, dtype: DType) -> Finding | None:
    """The operand of what JAX cannot lower, with the user's line that computes with it."""
    local = (frame.f_locals.get("eqn") for frame in reversed(failure.frames))
    stack = [x for x in local if hasattr(x, "source_info")]
    site = failure.sites[-1] if failure.sites else None
    line = Written(stack).origin or (site and origin_of_frame(site.frame, site.line))
    if not stack or line is None:
        return None
    first: Any = stack[0]
    name = first.primitive.name
    refused = [x.aval for x in first.invars if dtype_of(x.aval) == dtype]
    leaves = [RefusedLeaf(0, f"the operand of {name}", (*refused[:1],), Why(line))]
    call = RefusedCall(jnp.dtype("float32"), "lowered", name)
    headline = f"{name} takes no {dtype} on this device."
    return Finding(headline, leaves if refused else [], call)
