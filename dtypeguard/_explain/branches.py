"""What to write where branches return leaves in different types."""

import ast
from collections.abc import Iterator, Sequence

import jax.numpy as jnp

from .._leaves.dtypes import fits, kind
from .._leaves.rows import array_text, cast_text, lost
from .._source.files import is_installed, is_users, package
from .._source.syntax import returned, root, text_of
from .begin import dtype_on_line
from .casts import atom, cast_on_line, computed
from .finding import Finding, RefusedLeaf
from .frames import ControlFlow
from .packages import give, is_of_optimizer, is_own, wrapped
from .remedies import Remedy, Way
from .trials import Trials

_LONG = 60  # an expression with more characters is not written out


def branch_remedies(
    call: ControlFlow, finding: Finding, trials: Trials
) -> Iterator[Remedy]:
    """What to write where branches return leaves in different types."""
    leaves = finding.leaves
    made = [leaf for leaf in leaves if leaf.is_made]
    # A branch may return a state as it was before, which `init` has made.
    if is_of_optimizer(call, [leaf for leaf in made if not leaf.unchanged] or made):
        yield wrapped(finding, trials, lambda: None)
        return
    one, other = pair = leaves[:2]
    made = [leaf for leaf in pair if leaf.is_made]
    kept = [leaf for leaf in pair if not leaf.is_made]
    promoted = [leaf for leaf in pair if leaf.why.cause]
    ways: list[Way] = []
    if not one.path.startswith("result"):  # the branches return nothing: they work in place
        changed = " and ".join(f"dtypeguard.guard_step({leaf.branch})" for leaf in made)
        ways = [Way(f"guard what you give to {package(call.file)}: {changed}", _not_tried)]
    elif one.values[0].shape != other.values[0].shape:
        ways = [Way("return one shape from all branches")]
    elif is_installed(call.file) and not call.has_users_branch:
        own = [leaf for leaf in promoted if is_own(leaf.why.origin)]
        own.sort(key=lambda leaf: bool(leaf.unchanged))  # what was there before is meant
        for leaf in own[:1]:
            to = other if leaf is one else one
            line = leaf.why.origin and leaf.why.origin.users
            old, new = leaf.dtypes[0], to.dtypes[0]
            text = cast_on_line(line, old, new, None) if line else ""
            text = text or f"cast what {line} computes: {_cast(call, leaf, to)}"
            ways = [Way(text, _not_tried)]
        if not own:
            narrow, wide = sorted(pair, key=_width)
            yield give(call, finding, [(narrow.dtypes[0], wide.dtypes[0])], trials)
    elif made and kept:  # the value that was there before has the type that is meant
        ways = [Way(_keep(call, made[0], kept[0]))]
    else:
        pairs = ((one, other), (other, one))
        texts = [
            f"{leaf.branch} return {_cast(call, leaf, to)}"
            for leaf, to in sorted(pairs, key=lambda pair: _rounds(*pair))
            if len(promoted) != 1 or leaf is promoted[0]
            if _fits(leaf, to) or kind(to.dtypes[0]) in ("float", "complex")
        ]
        ways = [Way(f"let {' or '.join(texts)}")] if texts else []
        ways = ways or [*_of_one_kind(call, finding, pair, promoted)]
    yield Remedy(ways, leaves)


def _of_one_kind(
    call: ControlFlow,
    finding: Finding,
    pair: Sequence[RefusedLeaf],
    promoted: Sequence[RefusedLeaf],
) -> Iterator[Way]:
    """What to write where a promotion to another kind is not to be undone by a cast."""
    frames = [site.frame for site in finding.sites]
    for leaf, to in (pair, pair[::-1]):
        line, old, new = leaf.why.root, leaf.dtypes[0], to.dtypes[0]
        if leaf in promoted and line and is_own(line):
            if found := dtype_on_line(line.users, old, new, frames):
                text = f"at {line.users} write {found[0]} in place of {found[1]}"
                yield Way(text, _not_tried)
        elif leaf not in promoted and kind(new) in ("float", "complex"):
            yield Way(f"let {leaf.branch} return {_cast(call, leaf, to)}")


def _not_tried() -> None:
    return None


def _width(leaf: RefusedLeaf) -> tuple[int, int]:
    """By which the wider of two types comes last: its kind, then its size."""
    kinds = ("bool", "int", "float", "complex")
    return kinds.index(kind(leaf.dtypes[0]) or "bool"), leaf.dtypes[0].itemsize


def _keep(call: ControlFlow, made: RefusedLeaf, kept: RefusedLeaf) -> str:
    """What to write where one branch computes a leaf and the other keeps its value."""
    (dtype,) = made.dtypes
    is_exact = kind(dtype) not in ("float", "complex")
    if _fits(made, kept) or (is_exact and kind(kept.dtypes[0]) in ("float", "complex")):
        return f"let {made.branch} return {_cast(call, made, kept)}"
    cast = array_text(dtype) + lost(kept.dtypes[0], dtype)
    if kept.variable:
        return f"let the first value of {kept.variable} be {dtype}: {cast}"
    return f"let {kept.branch} return {cast}"


def _fits(source: RefusedLeaf, target: RefusedLeaf) -> bool:
    return fits(source.dtypes[0], target.dtypes[0])


def _rounds(source: RefusedLeaf, target: RefusedLeaf) -> bool:
    """Whether a cast to the dtype of another leaf loses something."""
    old, new = source.dtypes[0], target.dtypes[0]
    return jnp.promote_types(old, new) != new


def _cast(call: ControlFlow, source: RefusedLeaf, target: RefusedLeaf) -> str:
    """A cast of what one branch returns to the dtype of another, and what that loses."""
    old, new = source.dtypes[0], target.dtypes[0]
    if source.literal is not None:
        number = repr(source.literal)
        is_float = kind(old) == "int" and kind(new) == "float"  # of any width
        text = repr(float(source.literal)) if is_float else array_text(new, number)
        return f"{text} in place of {number}"
    return (_like(call, source, target) or cast_text(new, _written(call, source))) + lost(
        old, new
    )


def _like(call: ControlFlow, source: RefusedLeaf, target: RefusedLeaf) -> str:
    """A tree that one branch returns, in the dtypes of that of another; else empty.

    A cast to one dtype would change leaves of another kind as well.
    """
    codes = [call.bodies[leaf.branch].code for leaf in (source, target)]
    nodes = [
        returned(code) if code and is_users(code.co_filename) else None for code in codes
    ]
    (code, other), (node, model) = codes, nodes
    variable = root(model)
    if source.path == "result" or not (code and other and node):
        return ""
    if not isinstance(variable, ast.Name) or isinstance(node, (ast.Tuple, ast.Dict)):
        return ""
    scopes = {each.co_qualname.rpartition(".")[0] for each in (code, other)}
    given = [each.co_varnames[: each.co_argcount] for each in (code, other)]
    is_given = any(variable.id in names for names in given)
    is_seen = given[0] == given[1] if is_given else len(scopes) == 1
    texts = [text_of(each, code.co_filename) for each in (node, model) if each]
    if not is_seen or len(scopes) > 1 or max(map(len, texts)) > _LONG:
        return ""
    return f"jax.tree.map(lambda x, y: x.astype(y.dtype), {', '.join(texts)})"


def _written(call: ControlFlow, leaf: RefusedLeaf) -> str:
    """What a branch returns, as it is written, if that is one array; else x."""
    code = call.bodies[leaf.branch].code
    is_own = code is not None and is_users(code.co_filename) and leaf.path == "result"
    node = returned(code) if code and is_own else None
    text = computed(node, code.co_filename) if code and node else ""
    return atom(node, text) if node and text else "x"
