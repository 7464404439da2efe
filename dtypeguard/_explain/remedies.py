"""What to write, chosen by types alone: a table of (kind of place, from, to) gives a form.

The forms are five: begin the leaf in the other dtype at its line; guard the body; cast at
the line that changed the type; cast the argument; let this branch return another dtype.
That a leaf of a loop begins so is tried, and not said where that fails.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.dtypes import float0

from .._leaves.dtypes import dtype_of, fits, is_python_number, kind, rank
from .._leaves.groups import FEW, grouped, of_holders
from .._leaves.internals import STATEFUL
from .._leaves.rows import lost, type_text
from .._leaves.types import DType
from .._lines.sites import Site
from .._source.files import is_installed, line_text, package, short_path
from .._source.origin import Origin
from .._source.syntax import CASTING
from . import trial
from .finding import Finding, RefusedCall, RefusedLeaf, users_sites
from .frames import ControlFlow
from .trial import Outcome

# What is to be written for a leaf of a carry, the best first, by what becomes of it.
_OF_A_CARRY = {
    "wider": ("begin", "guard"),  # what begins wide loses nothing
    "another kind": ("begin", "guard"),
    "weak": ("begin",),
    "narrower": ("cast", "guard"),
    "a lesser kind": ("cast",),
    "another shape": ("begin",),
}
_WAYS = 2  # of mending a leaf that are said


class Remedy(NamedTuple):
    """One way of writing it.

    Attributes:
        text: sentences, without the end of the last one.
        leaves: that it mends.
        trial: tells whether it does.
        changes: the numbers of leaves that stand first.
    """

    text: str
    leaves: Sequence[RefusedLeaf]
    trial: Callable[[], Outcome] = lambda: None
    changes: frozenset[int] = frozenset()


class Choice(NamedTuple):
    """What a note says.

    Attributes:
        headline: what is wrong.
        leaves: all that JAX refuses.
        remedies: what to write, a sentence each.
        is_checked: whether something was tried with success.
        to: the dtypes to which what is wider is cast.
    """

    headline: str
    leaves: Sequence[RefusedLeaf]
    remedies: Sequence[str] = ()
    is_checked: bool = False
    to: Sequence[str] = ()


def choose(finding: Finding) -> Choice:
    """What is found, and what to write: of each leaf what was tried with success first."""
    sentences: list[str] = []
    is_checked, leaves = False, [*finding.leaves]
    for ways in _remedies(finding):
        outcomes = [(way, way.trial()) for way in {x.text: x for x in ways}.values()]
        said = [(way, outcome) for way, outcome in outcomes if outcome is not False][:_WAYS]
        is_checked |= any(outcome for _, outcome in said)
        mended: set[int] = set()
        for way, _ in said:
            numbers = {leaf.number for leaf in way.leaves}
            text = f"or {way.text}" if mended & numbers else way.text
            mended |= numbers
            sentences += [f"{x[0].upper()}{x[1:].rstrip('.')}." for x in text.splitlines()]
        for way, _ in said[:1]:
            leaves.sort(key=lambda leaf: leaf.number not in way.changes)
    told = " ".join(remedy := [*dict.fromkeys(sentences)])
    guarded = {str(x.dtypes[0]) for x in leaves if x.is_castable and "guard_step" in told}
    to = [x for x in ("bfloat16", "float16") if f'("{x}")' in told or x in guarded]
    return Choice(finding.headline, leaves, remedy, is_checked and bool(remedy), to)


def _remedies(finding: Finding) -> Iterator[Sequence[Remedy]]:
    """The ways of mending what an error is about: of each sequence one is to be chosen."""
    if _is_of_optimizer(finding):
        yield [Remedy("wrap the optimizer: dtypeguard.guard(opt)", finding.leaves)]
    elif isinstance(finding.of, RefusedCall):
        yield [*_OF_CALLS[finding.of.place](finding.of, finding)]
    elif finding.of.is_loop:
        yield [*_of_loop(finding.of, finding)]
    else:
        yield from _of_branches(finding.of, finding)


def _is_of_optimizer(finding: Finding) -> bool:
    """Whether an Optax optimizer is at fault: it made the call, or it has all the lines."""
    leaves = [leaf for leaf in finding.leaves if not leaf.kept] or finding.leaves
    lines = [leaf.why.origin for leaf in leaves if leaf.why.origin is not None]
    if finding.of.is_update or isinstance(finding.of, RefusedCall):
        return finding.of.is_update
    of = lambda line: line.is_of_optimizer or line.is_of_apply_updates
    return any(x.is_of_optimizer for x in lines) and all(map(of, lines))


def _change_of(old: DType, new: DType) -> str:
    """What becomes of a leaf, as the table says it."""
    if rank(old) != rank(new):
        return "another kind" if rank(new) > rank(old) else "a lesser kind"
    return "wider" if fits(old, new) and new.itemsize > old.itemsize else "narrower"


def _line(line: Origin | None) -> str:
    """The user's own line; empty if it is not known, or a package's."""
    return str(line.users) if line and not is_installed(line.users.file) else ""


def _at(line: Origin | None, text: str) -> str:
    return f"at {_line(line)} {text}" if _line(line) else text


def _name(leaves: Sequence[RefusedLeaf]) -> str:
    paths = [leaf.path for leaf in leaves]
    return " and ".join(paths) if len(paths) <= FEW else of_holders(paths)


def _cast(dtype: DType, old: DType) -> str:
    """A cast as it is written, which needs no name of the file, with what it loses."""
    real = ".real" * (kind(old) == "complex" and kind(dtype) != "complex")
    return f'{real}.astype("{dtype}"){lost(old, dtype)}'


def _each(
    leaves: Sequence[RefusedLeaf],
    line: Callable[[RefusedLeaf], Origin | None],
    text: Callable[[str, RefusedLeaf], str],
) -> str:
    """A sentence for the leaves of each line of which the same is to be said."""
    groups = grouped(leaves, lambda x: (_line(line(x)), text("", x)))
    told = [_at(line(those[0]), text(_name(those), those[0])) for those in groups]
    return ".\nAnd ".join(told)


# Loops


def _of_loop(call: ControlFlow, finding: Finding) -> Iterator[Remedy]:
    leaves = finding.leaves
    has_own_lines = any(x.why.origin and x.why.origin.outermost for x in leaves)
    if call.is_of_jax or (is_installed(call.file) and not has_own_lines):
        if all(_line(leaf.why.begun) for leaf in leaves):
            yield _begin(call, leaves)
        yield from _given(finding, {leaf.dtypes[0]: leaf.dtypes[1] for leaf in leaves})
        return
    of_form = lambda form: [leaf for leaf in leaves if form in _forms(leaf)]
    begin, cast = of_form("begin"), of_form("cast")
    guard = _guard(call, [leaf for leaf in of_form("guard") if leaf.is_castable])
    # What begins on no line that could be named is guarded first.
    is_last = all(_line(x.why.begun) or x.is_of_first for x in begin)
    if guard and not is_last:
        yield guard
    if begin:
        yield _begin(call, begin)
    if cast:
        told = lambda name, x: f"cast {name} back to {x.dtypes[0]}: {_cast(*x.dtypes)}"
        yield Remedy(_each(cast, lambda x: x.why.origin, told), cast)
    if guard and is_last:
        yield guard


def _forms(leaf: RefusedLeaf) -> tuple[str, ...]:
    origin = leaf.why.origin
    if leaf.is_reshaped:
        return _OF_A_CARRY["another shape"]
    if getattr(leaf.values[0], "weak_type", False):
        return _OF_A_CARRY["weak"]
    if origin and (origin.is_of_optimizer or origin.is_of_apply_updates):
        return ("guard",)
    return _OF_A_CARRY[_change_of(*leaf.dtypes)]


def _begin(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> Remedy:
    """To begin leaves in the type in which they come back."""

    def text(name: str, leaf: RefusedLeaf) -> str:
        old, new = leaf.dtypes
        to = type_text(leaf.values[1]) if leaf.is_reshaped else str(new)
        return f"begin {name} as {to}{lost(old, new) * (kind(new) != kind(old))}"

    places = {x.place: x.values[1] for x in leaves if x.place is not None}
    tried = partial(trial.begins, call.bodies["body"], places)
    text_ = _each(leaves, lambda x: x.why.begun, text)
    return Remedy(text_, leaves, tried if len(places) == len(leaves) else lambda: None)


def _guard(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> Remedy | None:
    """To guard the body; None where no guard sees what a package keeps."""
    code = call.bodies["body"].code
    name, carry, line = code.co_name if code else "body", call.kind.carry, call.line
    what = "the body"
    if is_installed(call.file):
        lines = (x.why.origin for x in leaves if x.why.origin)
        frame = next((line.outermost for line in lines if line.outermost), None)
        if frame is None or package(call.file) in STATEFUL:
            return None
        name, line = frame.function.rpartition("<locals>.")[2], None
        carry, what = call.carry, f"what you give to {package(call.file)}"
        if short_path(call.file).startswith(os.path.join("flax", "core")):
            carry = int("." not in name)  # Linen gives it the module first
    name = name if name.replace(".", "").isidentifier() else "lambda ..."
    given = f"{name}, carry={carry}" if carry else name
    text = _at(line, f"guard {what}: dtypeguard.guard_step({given})")
    return Remedy(text, leaves) if leaves else None


# Branches


def _of_branches(call: ControlFlow, finding: Finding) -> Iterator[Sequence[Remedy]]:
    by_path = grouped(finding.leaves, lambda leaf: leaf.path)
    key = lambda of_path: tuple((x.branch, str(x.dtypes[0]), bool(x.kept)) for x in of_path)
    for alike in grouped(by_path, key):
        own = [leaf for of_path in alike for leaf in of_path]
        if not own[0].path.startswith("result"):  # they return nothing and work in place
            names = dict.fromkeys(leaf.branch for leaf in own if not leaf.kept)
            guarded = " and ".join(f"dtypeguard.guard_step({name})" for name in names)
            yield [Remedy(f"guard what you give to {package(call.file)}: {guarded}", own)]
        elif len({leaf.values[0].shape for leaf in alike[0]}) > 1:
            yield [Remedy("return one shape from all branches", own)]
        elif not is_installed(call.file) or any(_line(x.why.origin) for x in own):
            yield [*_returns(alike)]
        else:
            width = lambda dtype: (rank(dtype), dtype.itemsize)
            narrow, wide = sorted((own[0].dtypes[0], own[1].dtypes[0]), key=width)
            yield [*_given(finding, {narrow: wide})]


def _returns(alike: Sequence[Sequence[RefusedLeaf]]) -> Iterator[Remedy]:
    """To begin what was there in the other dtype, or to return one dtype."""
    own, first = [x for of_path in alike for x in of_path], alike[0]
    name = _name([of_path[0] for of_path in alike])
    kept, made = ([x for x in first if bool(x.kept) == y] for y in (True, False))
    dtypes = list(dict.fromkeys(x.dtypes[0] for x in first))
    if kept and made and len(dtypes) == 2:
        (old,), (new,), line = kept[0].dtypes, made[0].dtypes, kept[0].why.root
        origin = made[0].why.origin
        is_cast = any(f"{x}(" in (origin.users.code if origin else "") for x in CASTING)
        is_wider = _change_of(old, new) in ("wider", "another kind")
        if is_wider and _line(line) and not is_cast:  # the user's own cast is to change
            text = f"begin what {kept[0].branch} returns as {new}{lost(old, new)}"
            yield Remedy(_at(line, text), own)
    meant = [x.dtypes[0] for x in kept] if kept and made else []
    losses = lambda to: sum(jnp.promote_types(x, to) != to for x in dtypes)
    for to in dict.fromkeys([*meant, *sorted(dtypes, key=losses)]):
        others = [x for x in first if x.dtypes[0] != to]
        if all(fits(x.dtypes[0], to) or rank(to) > rank(x.dtypes[0]) for x in others):
            old = others[0].dtypes[0]
            names = " and ".join(dict.fromkeys(x.branch for x in others))
            text = f"let {names} return {name} as {to}: {_cast(to, old)}"
            line = others[0].why.origin if len(others) == 1 else None
            yield Remedy(_at(line, text), own)


# Arguments and results

_Casts = Sequence[tuple[RefusedLeaf, DType]]


def _of_arguments(call: RefusedCall, finding: Finding) -> Iterator[Remedy]:
    site, leaves = finding.sites[-1], finding.leaves
    if call.keeps:
        return
    ways = [[(leaf, call.wanted) for leaf in leaves]]
    if call.wanted is None:
        ways = _to_meet(leaves)
    if is_installed(site.file):  # nobody edits its call: what the user made is cast there
        is_made = lambda x: x.why.origin and not is_installed(x.why.origin.file)
        made = [[pair for pair in way if is_made(pair[0])] for way in ways]
        given = {leaf.dtypes[-1]: to for leaf, to in ways[0]}
        if not any(made) and all(kind(old) == kind(to) for old, to in given.items()):
            yield from _given(finding, given)
        ways = [way for way in made if way]
    yield from (_casts(way, site, leaves) for way in ways)
    if call.place == "compiled":
        keep = "compile a function that keeps its types: dtypeguard.guard_step(step)"
        yield Remedy(keep, leaves)


def _casts(casts: _Casts, site: Site, leaves: Sequence[RefusedLeaf]) -> Remedy:
    """To cast some arguments, each at its line."""
    sentences = [_of_argument(leaf, dtype, site) for leaf, dtype in casts]
    text = ".\nAnd ".join(dict.fromkeys(sentences))
    numbers = frozenset(leaf.number for leaf, _ in casts)
    return Remedy(text, leaves, changes=numbers)


def _of_argument(leaf: RefusedLeaf, dtype: DType, site: Site) -> str:
    """What to write for one argument: the source of a number, else the argument."""
    argument, value, old = leaf.argument, leaf.values[-1], leaf.dtypes[-1]
    name = (argument and argument.is_whole and argument.text) or leaf.path
    number = getattr(argument and argument.source, "lineno", None) or site.line
    where, made = line_text(site.file, number), _line(leaf.why.origin)
    if dtype == float0:
        return f"at {where} give {name} as np.zeros({np.shape(value)}, jax.dtypes.float0)"
    if isinstance(value, np.dtype):
        begin = f"at {made} begin {name.removesuffix('.dtype')} as {dtype}"
        return begin if made else f'at {where} ask for dtype="{dtype}"'
    is_of_host = is_python_number(value) or isinstance(value, (np.ndarray, np.generic))
    if made and (is_installed(site.file) or (is_of_host and leaf.why.cause is None)):
        where = made
    if is_python_number(value):
        cast = _PYTHONS.get(str(kind(dtype)), float)(value)
        if type(cast) is type(value):
            return f'at {where} give {name} as jax.numpy.asarray({value!r}, "{dtype}")'
        loss = lost(old, dtype) * (cast != value)
        return f"at {where} make {name} {_A[str(kind(dtype))]}: {cast!r}{loss}"
    return f"at {where} cast {name} to {dtype}: {_cast(dtype, old)}"


_A = {"int": "an int", "float": "a float", "complex": "a complex number", "bool": "a bool"}
_PYTHONS = {"int": int, "complex": complex, "bool": bool}


def _to_meet(leaves: Sequence[RefusedLeaf]) -> list[_Casts]:
    """The casts after which some arguments have one dtype: the best way and another."""
    of = lambda leaf: dtype_of(leaf.values[-1])
    base = lambda leaf: leaf.argument.base if leaf.argument else ""
    width = lambda dtype: (rank(dtype), dtype.itemsize)
    narrow, *_, wide = sorted(dict.fromkeys(map(of, leaves)), key=width)
    names = set(map(base, leaves))
    written = ("operand", "array", "primals", *("x" if names & {"min", "max"} else ()))
    if kept := [leaf for leaf in leaves if base(leaf) in written]:
        targets = [of(kept[0])]  # it is written to, or clamped
    elif names <= {"lower", "upper"}:
        targets = [np.dtype("int32")]
    elif rank(narrow) != rank(wide):
        targets = [wide]
    else:
        is_forced = {of(x) for x in leaves if x.why.cause} == {wide}
        is_float = kind(wide) != "int"  # a narrower int wraps
        is_narrow_first = wide.itemsize == 8 or (is_forced and is_float)
        targets = [narrow, wide] if is_narrow_first else [wide, narrow]
    ways: list[_Casts] = [[(x, to) for x in leaves if of(x) != to] for to in targets]
    is_written = lambda way: all(x.argument and x.argument.source for x, _ in way)
    return [way for way in ways if is_written(way)] or ways[:1]


def _given(finding: Finding, pairs: dict[DType, DType]) -> Iterator[Remedy]:
    """To give a package, or a function of JAX, its arrays in another dtype."""
    for site in users_sites(finding.sites)[:1]:
        arrays = " and ".join(f"its {old} arrays as {new}" for old, new in pairs.items())
        text = f"at {line_text(site.file, site.line)} give {site.name or 'the call'}"
        text += f' {arrays}: .astype("{next(iter(pairs.values()))}")'
        yield Remedy(text, finding.leaves)


def _of_result(call: RefusedCall, finding: Finding) -> Iterator[Remedy]:
    (leaf,) = finding.leaves
    (old,), wanted = leaf.dtypes, call.wanted
    text = f"let {call.name} return {_A[str(kind(wanted))]}: {_cast(wanted, old)}"
    if kind(wanted) == "bool":
        text = f"let {call.name} return a bool: ... != 0"
    elif kind(old) != "complex":
        text += "; its gradient is zero"
    yield Remedy(_at(leaf.why.origin, text), finding.leaves)


def _of_checked(call: RefusedCall, finding: Finding) -> Iterator[Remedy]:
    leaves = finding.leaves
    site = next(site for site in users_sites(finding.sites) if site.inside)
    if call.wanted is not None:
        yield _casts([(leaf, call.wanted) for leaf in leaves], site, leaves)
    elif len({x.dtypes[0] for x in leaves}) == 2 and all(kind(x.dtypes[0]) for x in leaves):
        yield from (_casts(way, site, leaves) for way in _to_meet(leaves))


_OF_CALLS: dict[str, Callable[[RefusedCall, Finding], Iterator[Remedy]]] = {
    "argument": _of_arguments,
    "compiled": _of_arguments,
    "result": _of_result,
    "checked": _of_checked,
}
