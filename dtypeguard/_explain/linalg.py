"""What LAPACK has no routine for: a matrix in 16 bits, where JAX lowers what inverts it."""

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .._leaves.dtypes import dtype_of
from .._leaves.types import DType
from .._lines.equations import Written
from .._source.origin import Origin, Why, origin_of_frame
from .._source.syntax import statement, text_of
from .finding import Finding, RefusedCall, RefusedLeaf
from .read import Failure
from .remedies import Way
from .written import atom, called

# Functions of linear algebra that return one array, and those that return several.
_ONE = {"inv", "solve", "det", "cholesky", "pinv", "expm", "solve_triangular", "cho_solve"}
_ONE |= {"eigvalsh", "eigvals", "svdvals", "matrix_power", "inverse", "sqrtm"}
_SEVERAL = {"qr", "svd", "eigh", "eig", "slogdet", "lstsq", "lu", "lu_factor", "cho_factor"}


def find_unsupported(failure: Failure, dtype: DType) -> Finding | None:
    """The operand of what JAX cannot lower, with the user's line that computes with it."""
    local = (frame.f_locals.get("eqn") for frame in reversed(failure.frames))
    stack = [x for x in local if hasattr(x, "source_info")]
    site = failure.sites[-1] if failure.sites else None
    line = Written(stack).origin or (site and origin_of_frame(site.frame, site.line))
    if not stack or line is None:
        return None
    first: Any = stack[0]
    refused = [x.aval for x in first.invars if dtype_of(x.aval) == dtype]
    node = _call_on(line.users)
    name = ast.unparse(node.func) if node else first.primitive.name
    leaves = [RefusedLeaf(0, name, (aval,), Why(line)) for aval in refused[:1]]
    call = RefusedCall(line.users.file, node, jnp.dtype("float32"), equation=first)
    return Finding(f"{name} takes no {dtype} on this device.", leaves, call)


def unsupported_ways(call: RefusedCall, finding: Finding) -> Iterator[Way]:
    """To compute in float32, and to go back where one array is returned."""
    (leaf,) = finding.leaves
    (old,), node, cast = leaf.dtypes, call.node, "astype(jnp.float32)"
    trial = partial(_lowers, call.equation, old)
    if not isinstance(node, ast.Call):
        yield Way(f"cast to float32 and back at {leaf.why.root}", trial)
        return
    of = lambda x: atom(x, text_of(x, call.file))
    is_option = lambda x: isinstance(x, ast.Constant)
    given = [of(x) + ("" if is_option(x) else f".{cast}") for x in node.args]
    given += [f"{x.arg}={text_of(x.value, call.file)}" for x in node.keywords]
    back = f".astype(jnp.{old})" if called(node) in _ONE else ""
    new = f"{ast.unparse(node.func)}({', '.join(given)}){back}"
    yield Way(
        f"at {leaf.why.root} write {new} in place of {text_of(node, call.file)}", trial
    )


def _call_on(line: Origin) -> ast.Call | None:
    """The one call of linear algebra in a statement."""
    node = statement(line.file, line.line)
    calls = [x for x in (ast.walk(node) if node else ()) if isinstance(x, ast.Call)]
    found = [x for x in calls if called(x) in _ONE | _SEVERAL]
    return found[0] if len(found) == 1 else None


def _lowers(equation: Any, old: DType) -> bool:
    """Whether JAX lowers an equation in float32."""
    to = lambda aval: jnp.dtype("float32") if dtype_of(aval) == old else aval.dtype
    types = [jax.ShapeDtypeStruct(x.aval.shape, to(x.aval)) for x in equation.invars]
    run = lambda *arrays: equation.primitive.bind(*arrays, **equation.params)
    try:
        jax.jit(run).lower(*types)
    except Exception:
        return False
    return True
