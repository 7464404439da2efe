"""Third stage: chooses what to write, for each line that is to blame."""

import ast
import os
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from jax import tree_util

from .._leaves.dtypes import dtype_of, fits, kind
from .._leaves.groups import of_holders
from .._leaves.internals import STATEFUL
from .._leaves.rows import array_text, cast_text, lost, return_as, type_text
from .._leaves.types import DType
from .._source.files import is_installed, package, short_path
from .._source.origin import Origin
from .._source.syntax import text_of
from .casts import call_remedies, cast_on_line
from .finding import Finding, RefusedCall, RefusedLeaf
from .frames import ControlFlow

_LONG = 100  # a call with more characters is not written out
_WRAP = "Wrap the optimizer: dtypeguard.guard(opt)."


class Cause(NamedTuple):
    """A line that gave leaves a type that JAX refuses, or forced that.

    Attributes:
        line: None for leaves of which no line is known.
        leaves: those that got their types there.
        types: the dtypes to which the remedy may cast.
        remedy: what to write, a sentence a line.
    """

    line: Origin | None
    leaves: Sequence[RefusedLeaf]
    types: Sequence[str]
    remedy: Sequence[str]


class Choice(NamedTuple):
    """What a note says: the causes, those that are to be mended first before others."""

    headline: str
    causes: Sequence[Cause]


# What to write, and the leaves that it mends.
_Remedies = Iterable[tuple[str, Sequence[RefusedLeaf]]]


def choose(finding: Finding) -> Choice:
    """The lines to blame, and what to write for each."""
    leaves, remedies = finding.leaves, list(_remedies(finding))
    order = [text for text, _ in remedies]
    causes: dict[Origin | None, list[RefusedLeaf]] = {}
    for leaf in leaves:
        causes.setdefault(leaf.to_blame, []).append(leaf)
    chosen = []
    for line, of_line in causes.items():
        numbers = {leaf.number for leaf in of_line}
        mended = [(text, numbers & {x.number for x in mends}) for text, mends in remedies]
        remedy = [text for text, mends in mended if mends]
        dtypes = [x.dtypes[0] for x in of_line if len({*x.dtypes}) == len(x.dtypes)]
        types = list(dict.fromkeys(map(str, dtypes)))
        chosen.append(Cause(line, of_line, types, remedy))
    chosen.sort(key=lambda cause: min(map(order.index, cause.remedy), default=len(order)))
    return Choice(finding.headline, chosen)


def _remedies(finding: Finding) -> _Remedies:
    of, leaves = finding.of, finding.leaves
    if isinstance(of, RefusedCall):
        return ((text, leaves) for text in call_remedies(of, leaves))
    if of.is_loop:
        return _loop_remedies(of, leaves, finding.can_start)
    return ((text, leaves) for text in _branch_remedies(of, leaves))


def _loop_remedies(
    call: ControlFlow, leaves: Sequence[RefusedLeaf], can_start: bool
) -> _Remedies:
    """What to write where leaves of a carry come back in another type."""
    if call.is_of_jax or _is_of_package(call, leaves):
        yield _give_as_returned(call, leaves), leaves
        return
    castable = [leaf for leaf in leaves if leaf.is_castable and not leaf.is_reshaped]
    if castable or _is_of_optimizer(call, leaves):
        way, mended = _WRAP, leaves
        if not _is_of_optimizer(call, leaves):
            way, mended = _guard_or_cast(call, castable), castable
        odd = [leaf for leaf in castable if leaf.is_odd and not is_installed(call.file)]
        yield from _begin(odd)
        yield f"Or {way[0].lower()}{way[1:]}" if odd else way, mended
    for leaf in leaves:
        if leaf in castable:
            continue
        if leaf.is_reshaped:
            before, after = map(type_text, leaf.values)
            ways = [f"return {leaf.path} as {before}", f"start it as {after}"]
        else:
            old, new = leaf.dtypes
            start, cast = f"start {leaf.path} as {new}{lost(old, new)}", return_as(old, new)
            ways = [start, cast] if can_start else [f"for {leaf.path} {cast}"]
        text = ", or ".join(ways if can_start else ways[:1])
        yield f"{text[0].upper()}{text[1:]}.", [leaf]


def _begin(leaves: Sequence[RefusedLeaf]) -> _Remedies:
    """What to write where leaves begin in another dtype than the program has."""
    for new in dict.fromkeys(leaf.dtypes[1] for leaf in leaves):
        those = [leaf for leaf in leaves if leaf.dtypes[1] == new]
        where = " and ".join(
            dict.fromkeys(str(x.why.begun.users) for x in those if x.why.begun)
        )
        name = those[0].path if len(those) == 1 else of_holders([x.path for x in those])
        yield f"At {where} begin {name} as {new}: {array_text(new)}.", those


def _guard_or_cast(call: ControlFlow, castable: Sequence[RefusedLeaf]) -> str:
    """What to guard, and where to cast instead."""
    pairs = [leaf.dtypes for leaf in castable]
    casts = cast_text(pairs[0][0])
    if len({old for old, _ in pairs}) > 1:  # a tree of several dtypes
        casts = "x.astype(p.dtype), where p is the leaf that came in"
    casts += "".join(dict.fromkeys(lost(new, old) for old, new in pairs))
    lines = [leaf.why.origin for leaf in castable if leaf.why.origin]
    guard = ""
    if not is_installed(call.file):
        guard = f"Write {_guarded(call)}"
    elif package(call.file) in STATEFUL:
        guard = ""  # a guard does not see what it keeps
    elif frame := next((line.outermost for line in lines if line.outermost), None):
        guard = f"Guard what you give to {package(call.file)}: "
        guard += _guard_of(call, frame.function)
    own = [line.users for line in lines if _is_own(line)]
    if not own:  # no line that the user could edit
        return f"{guard}." if guard else _give_as_returned(call, castable)
    named = list(dict.fromkeys(map(str, own)))
    if all(line.called_from is None for line in lines):
        where = f"at {' and '.join(named)}"
        if len(castable) == 1 and (new := _cast_as_written(call, castable[0])):
            return f"{guard}, or {new}." if guard else f"{new[0].upper()}{new[1:]}."
    else:
        where = f"what {' and '.join(named)} compute{'s' * (len(named) == 1)}"
    return f"{guard}, or cast {where}: {casts}." if guard else f"Cast {where}: {casts}."


def _cast_as_written(call: ControlFlow, leaf: RefusedLeaf) -> str:
    """The cast of a leaf in the expression that promotes it; empty if that is not known."""
    line, code = leaf.why.origin, call.bodies["body"].code
    if line is None or code is None:
        return ""
    path = None
    if line.function == code.co_qualname:
        path = ["0"] * (call.name == "scan") + re.findall(r"\[(\w+|'\w+')\]", leaf.path)
    old, new = leaf.dtypes
    return cast_on_line(line, new, old, path)


def _is_own(line: Origin | None) -> bool:
    """Whether a line, or the one that called its package, is in the user's own code."""
    return line is not None and not is_installed(line.users.file)


def _guard_of(call: ControlFlow, function: str) -> str:
    """A guard of a function by its qualified name; as a decorator, of a method."""
    owner, _, name = function.rpartition(".")
    owner = owner.rpartition(".")[2]
    is_method = owner.isidentifier()
    position = call.carry
    if short_path(call.file).startswith(os.path.join("flax", "core")):
        position = int(not is_method)  # Flax Linen gives it the module first
    carry = f"carry={position}" if position else ""
    if is_method:
        return f"@dtypeguard.guard_step{carry and f'({carry})'} on {owner}.{name}"
    return f"dtypeguard.guard_step({', '.join(filter(None, [_argument(name), carry]))})"


def _argument(name: str) -> str:
    """What to write for a function: its name, or "body" where it has none."""
    return name if name.isidentifier() else "body"


def _guarded(call: ControlFlow) -> str:
    """The call with its body guarded, as the user has written it if that is short."""
    if text := _guarded_as_written(call):
        return text
    name = _argument(getattr(call.bodies["body"].function, "__name__", ""))
    before, argument, after = {
        "scan": ("", "", ", init, xs"),
        "while_loop": ("cond_fun, ", "", ", init_val"),
        "fori_loop": ("lower, upper, ", ", carry=1", ", init_val"),
        "associative_scan": ("", "", ", elems"),
    }[call.name]
    function = f"{'eqx.internal' if call.is_equinox else 'lax'}.{call.name}"
    return f"{function}({before}dtypeguard.guard_step({name}{argument}){after})"


def _guarded_as_written(call: ControlFlow) -> str:
    """The user's own call with its body guarded; empty if it is long or not known."""
    written = call.written
    if not isinstance(written, ast.Call) or not isinstance(
        written.func, (ast.Name, ast.Attribute)
    ):
        return ""
    place, keyword = {
        "scan": (0, "f"),
        "while_loop": (1, "body_fun"),
        "fori_loop": (2, "body_fun"),
        "associative_scan": (0, "fn"),
    }[call.name]
    body = [each.value for each in written.keywords if each.arg == keyword]
    before = written.args[: place + 1]
    if len(before) > place and not any(isinstance(x, ast.Starred) for x in before):
        body = [written.args[place]]
    text, function = (text_of(x, call.file) for x in (written, written.func))
    if len(body) != 1 or function.rpartition(".")[2] != call.name:
        return ""
    old = text_of(body[0], call.file)
    new = f"dtypeguard.guard_step({old}{', carry=1' * (call.name == 'fori_loop')})"
    # What stands before it may have the same text.
    start = len(function) if place == 0 else text.find(f" {old}")
    start = text.find(old, max(start, 0))
    return f"{text[:start]}{new}{text[start + len(old) :]}" if len(text) <= _LONG else ""


def _is_of_package(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> bool:
    """Whether a package wrote a loop, and no line of the user's runs in it."""
    return (
        is_installed(call.file)
        and not _is_of_optimizer(call, leaves)
        and all(len(set(leaf.dtypes)) == 2 for leaf in leaves)
        and not any(leaf.why.origin and leaf.why.origin.outermost for leaf in leaves)
    )


def _give_as_returned(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> str:
    """What to give to a function of JAX or of a package that contains the loop."""
    pairs = [leaf.dtypes for leaf in leaves]
    # A package may start the loop in a type of its own, which what it is given has to have.
    is_meant = all(leaf.is_castable and _is_own(leaf.why.cause) for leaf in leaves)
    is_meant = is_meant and not call.is_of_jax
    # The wider type loses nothing, whichever of the two the loop starts with.
    is_narrowed = lambda old, new: fits(old, new) and old.itemsize > new.itemsize
    pairs = [pair[::-1] if is_meant or is_narrowed(*pair) else pair for pair in pairs]
    return _give(call, [new for _, new in pairs], {old for old, _ in pairs})


def _give(call: ControlFlow, dtypes: Iterable[DType], wrong: Container[DType] = ()) -> str:
    """Says in which dtypes to give what, to the function that contains a call."""
    names = [
        name
        for name, value in call.given.items()
        if any(dtype_of(leaf) in wrong for leaf in tree_util.tree_leaves(value))
    ]
    what = f"its {' and its '.join(names)}" if names else "arrays"
    function, line = call.container or "JAX", call.line and call.line.called_from
    if line is not None and is_installed(call.file):
        function, what = package(call.file), f"its arrays at {line}"
    casts = {str(dtype): cast_text(dtype) for dtype in dtypes}
    return f"Give {function} {what} as {' or '.join(casts)}: {' or '.join(casts.values())}."


def _branch_remedies(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> Iterator[str]:
    """What to write where branches return leaves in different types."""
    computed = [leaf for leaf in leaves if leaf.is_made]
    # A branch may return a state as it was before, which `init` has made.
    computed = [leaf for leaf in computed if not leaf.unchanged] or computed
    if _is_of_optimizer(call, computed):
        yield _WRAP
        return
    one, other = pair = leaves[:2]
    made = [leaf for leaf in pair if leaf.is_made]
    kept = [leaf for leaf in pair if not leaf.is_made]
    promoted = [leaf for leaf in pair if leaf.why.cause]
    if not one.path.startswith("result"):  # the branches return nothing: they work in place
        changed = " and ".join(f"dtypeguard.guard_step({leaf.branch})" for leaf in made)
        yield f"Guard what you give to {package(call.file)}: {changed}."
    elif one.values[0].shape != other.values[0].shape:
        yield "Return one shape from all branches."
    elif is_installed(call.file) and not call.has_users_branch:
        own = [leaf for leaf in promoted if _is_own(leaf.why.origin)]
        own.sort(key=lambda leaf: bool(leaf.unchanged))  # what was there before is meant
        for leaf in own[:1]:
            cast = _cast(leaf, other if leaf is one else one)
            yield f"Cast what {leaf.why.origin and leaf.why.origin.users} computes: {cast}."
        if not own:
            wider = other if _fits(one, other) else one
            yield _give(call, wider.dtypes)
    elif made and kept:  # the value that was there before has the type that is meant
        yield _keep(made[0], kept[0])
    else:
        ways = [
            f"{leaf.branch} return {_cast(leaf, to)}"
            for leaf, to in ((one, other), (other, one))
            if len(promoted) != 1 or leaf is promoted[0]
            if _fits(leaf, to) or kind(to.dtypes[0]) in ("float", "complex")
        ]
        if ways:
            yield f"Let {' or '.join(ways)}."


def _keep(made: RefusedLeaf, kept: RefusedLeaf) -> str:
    """What to write where one branch computes a leaf and the other keeps its value."""
    (dtype,) = made.dtypes
    is_exact = kind(dtype) not in ("float", "complex")
    if _fits(made, kept) or (is_exact and kind(kept.dtypes[0]) in ("float", "complex")):
        return f"Let {made.branch} return {_cast(made, kept)}."
    cast = array_text(dtype) + lost(kept.dtypes[0], dtype)
    if kept.variable:
        return f"Let the first value of {kept.variable} be {dtype}: {cast}."
    return f"Let {kept.branch} return {cast}."


def _fits(source: RefusedLeaf, target: RefusedLeaf) -> bool:
    return fits(source.dtypes[0], target.dtypes[0])


def _cast(source: RefusedLeaf, target: RefusedLeaf) -> str:
    """A cast of what one branch returns to the dtype of another, and what that loses."""
    old, new = source.dtypes[0], target.dtypes[0]
    return cast_text(new) + lost(old, new)


def _is_of_optimizer(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> bool:
    """Whether an Optax optimizer is at fault: it made the call, or it has all the lines."""
    lines = [leaf.why.origin for leaf in leaves if leaf.why.origin is not None]
    return call.is_update or (bool(lines) and all(line.is_of_optimizer for line in lines))
