"""What to write, chosen by types alone: a table of (kind of place, from, to) gives a form.

The forms are five: begin the leaf in the other dtype at its line; guard the body; cast at
the line that changed the type; cast the argument; let this branch return another dtype.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.dtypes import float0

from .._leaves.dtypes import dtype_of, fits, is_array, is_python_number, kind, rank
from .._leaves.groups import FEW, grouped, of_holders
from .._leaves.internals import STATEFUL
from .._leaves.rows import lost, type_text
from .._leaves.types import DType, Leaf
from .._lines.sites import Site, written_in
from .._source.files import is_installed, line_text, package, short_path
from .._source.origin import Origin
from . import trial
from .finding import Finding, RefusedCall, RefusedLeaf
from .frames import ControlFlow, users_sites
from .messages import INDICES
from .trial import Outcome, untried


class Remedy(NamedTuple):
    """One way of writing it.

    Attributes:
        text: sentences, without the end of the last one.
        leaves: that it mends.
        trial: tells whether it does.
        to: the dtypes to which it casts what is wider.
        changes: the numbers of leaves that stand first.
    """

    text: str
    leaves: Sequence[RefusedLeaf]
    trial: Callable[[], Outcome] = untried
    to: tuple[DType, ...] = ()
    changes: frozenset[int] = frozenset()


_WRAP = "wrap the optimizer: dtypeguard.guard(opt)"

# What is to be written for a leaf of a carry, the best first, by what becomes of it.
_OF_A_CARRY = {
    "wider": ("begin", "guard"),  # what begins wide loses nothing
    "another kind": ("begin", "guard"),
    "weak": ("begin",),
    "narrower": ("cast", "guard"),
    "a lesser kind": ("cast",),
    "another shape": ("begin",),
}


def change_of(old: DType, new: DType) -> str:
    """What becomes of a leaf, as the table says it."""
    if rank(old) != rank(new):
        return "another kind" if rank(new) > rank(old) else "a lesser kind"
    return "wider" if fits(old, new) and new.itemsize > old.itemsize else "narrower"


def remedies(finding: Finding) -> Iterator[Sequence[Remedy]]:
    """The ways of mending what an error is about: of each sequence one is to be chosen."""
    if isinstance(finding.of, ControlFlow):
        of = _of_loop if finding.of.is_loop else _of_branches
        yield from of(finding.of, finding)
    else:
        yield from _OF_CALLS[finding.of.place](finding.of, finding)


def _line(line: Origin | None) -> str:
    """The user's own line; empty if it is not known, or a package's."""
    return str(line.users) if line and not is_installed(line.users.file) else ""


def _at(line: Origin | None, text: str) -> str:
    return f"at {_line(line)} {text}" if _line(line) else text


def _name(leaves: Sequence[RefusedLeaf]) -> str:
    paths = [leaf.path for leaf in leaves]
    return " and ".join(paths) if len(paths) <= FEW else of_holders(paths)


def _cast(dtype: DType, old: DType = None) -> str:
    """A cast as it is written, which needs no name of the file."""
    real = ".real" * (kind(old) == "complex" and kind(dtype) != "complex")
    return f'{real}.astype("{dtype}")'


def _narrowed(old: DType, new: DType) -> tuple[DType, ...]:
    return (new,) if change_of(old, new) == "narrower" and new.itemsize <= 2 else ()


# Loops


def _of_loop(call: ControlFlow, finding: Finding) -> Iterator[Sequence[Remedy]]:
    leaves = finding.leaves
    if _is_of_optimizer(call, leaves):
        yield [Remedy(_WRAP, leaves)]
        return
    if call.is_of_jax or _is_of_package(call, leaves):
        pairs = {x.dtypes[0]: x.dtypes[1] for x in leaves}
        begun = [_begin(call, leaves)] if all(_line(x.why.begun) for x in leaves) else []
        yield [*begun, *_given(finding, pairs)]
        return
    forms = {leaf.number: _forms(leaf) for leaf in leaves}
    of_form = lambda form, place: [
        x for x in leaves if forms[x.number][place : place + 1] == (form,)
    ]
    begin, cast = of_form("begin", 0), of_form("cast", 0)
    guard = [x for x in leaves if "guard" in forms[x.number] and x.is_castable]
    ways = [_begin(call, begin)] if begin else []
    ways += [_cast_back(call, cast)] if cast else []
    if guard and (way := _guard(call, guard)):
        # What begins on no line that could be named is guarded first.
        is_first = all(_line(x.why.begun) or x.is_of_first for x in begin)
        guarded, begun = ({x.number for x in those} for those in (guard, begin))
        if begun < guarded and not cast:
            ways = []  # it mends more
        ways.insert(len(ways) if is_first else 0, way)
    yield ways


def _forms(leaf: RefusedLeaf) -> tuple[str, ...]:
    (old, new), origin = leaf.dtypes, leaf.why.origin
    if leaf.is_reshaped:
        return _OF_A_CARRY["another shape"]
    if getattr(leaf.values[0], "weak_type", False):
        return _OF_A_CARRY["weak"]
    if origin and (origin.is_of_optimizer or origin.is_of_apply_updates):
        return ("guard",)
    return _OF_A_CARRY[change_of(old, new)]


def _begin(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> Remedy:
    """To begin leaves in the type in which they come back."""
    sentences = []
    for those in grouped(leaves, lambda x: (_line(x.why.begun), str(x.dtypes[1]))):
        (old, new), loss = those[0].dtypes, ""
        to = type_text(those[0].values[1]) if those[0].is_reshaped else str(new)
        loss = lost(old, new) if kind(new) != kind(old) else ""
        text = f"begin {_name(those)} as {to}{loss}"
        sentences.append(_at(those[0].why.begun, text))
    places = {x.place: x.values[1] for x in leaves if x.place is not None}
    body = call.bodies["body"]
    is_known = len(places) == len(leaves)
    tried = partial(trial.begins, body, places) if is_known else untried
    return Remedy(".\nAnd ".join(sentences), leaves, tried)


def _cast_back(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> Remedy:
    """To cast what comes back narrower at the line that narrowed it, as a guard would."""
    sentences, to = [], []
    for those in grouped(leaves, lambda x: (_line(x.why.origin), str(x.dtypes[0]))):
        old, new = those[0].dtypes
        text = f"cast {_name(those)} back to {old}: {_cast(old, new)}{lost(new, old)}"
        sentences.append(_at(those[0].why.origin, text))
        to += _narrowed(new, old)
    return Remedy(".\nAnd ".join(sentences), leaves, _kept(call, leaves), tuple(to))


def _kept(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> Callable[[], Outcome]:
    """The trial of a cast of leaves to the types in which they began."""
    places = tuple(x.place for x in leaves if x.place is not None and x.is_castable)
    is_known = len(places) == len(leaves)
    return partial(trial.is_guarded, call.bodies["body"], places) if is_known else untried


def _guard(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> Remedy | None:
    """To guard the body; None where no guard sees what a package keeps."""
    body, tried = call.bodies["body"], _kept(call, leaves)
    narrow = dict.fromkeys(y for x in leaves for y in _narrowed(*x.dtypes[::-1]))
    if not is_installed(call.file):
        name = body.code.co_name if body.code else "body"
        name = name if name.isidentifier() else "lambda ..."
        carry = f", carry={call.kind.carry}" if call.kind.carry else ""
        text = f"guard the body: dtypeguard.guard_step({name}{carry})"
        return Remedy(_at(call.line, text), leaves, tried, tuple(narrow))
    lines = (x.why.origin for x in leaves if x.why.origin)
    frame = next((line.outermost for line in lines if line.outermost), None)
    if frame is None or package(call.file) in STATEFUL:
        return None
    owner, _, name = frame.function.rpartition(".")
    owner = owner.rpartition(".")[2]
    is_method, position = owner.isidentifier(), call.carry
    if short_path(call.file).startswith(os.path.join("flax", "core")):
        position = int(not is_method)  # Flax Linen gives it the module first
    carry = f"(carry={position})" if position else ""
    text = f"guard what you give to {package(call.file)}: @dtypeguard.guard_step{carry} "
    text += f"on {owner}.{name}" if is_method else f"directly above def {name}"
    if not name.isidentifier():
        carry = f", carry={position}" if position else ""
        text = f"guard what you give to {package(call.file)}: "
        text += f"dtypeguard.guard_step(lambda ...{carry})"
    return Remedy(text, leaves, tried, tuple(narrow))


def _is_of_optimizer(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> bool:
    """Whether an Optax optimizer is at fault: it made the call, or it has all the lines."""
    lines = [leaf.why.origin for leaf in leaves if leaf.why.origin is not None]
    of = lambda line: line.is_of_optimizer or line.is_of_apply_updates
    return call.is_update or (any(x.is_of_optimizer for x in lines) and all(map(of, lines)))


def _is_of_package(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> bool:
    """Whether a package wrote a loop, and no line of the user's runs in it."""
    return is_installed(call.file) and not any(
        leaf.why.origin and leaf.why.origin.outermost for leaf in leaves
    )


# Branches


def _of_branches(call: ControlFlow, finding: Finding) -> Iterator[Sequence[Remedy]]:
    leaves = finding.leaves
    if _is_of_optimizer(call, [x for x in leaves if not x.kept] or leaves):
        yield [Remedy(_WRAP, leaves)]
        return
    by_path = grouped(leaves, lambda leaf: leaf.path)
    key = lambda of_path: tuple((x.branch, str(x.dtypes[0]), bool(x.kept)) for x in of_path)
    for alike in grouped(by_path, key):
        own = [leaf for of_path in alike for leaf in of_path]
        if not own[0].path.startswith("result"):  # they return nothing and work in place
            names = dict.fromkeys(leaf.branch for leaf in own if not leaf.kept)
            guarded = " and ".join(f"dtypeguard.guard_step({name})" for name in names)
            yield [Remedy(f"guard what you give to {package(call.file)}: {guarded}", own)]
        elif len({leaf.values[0].shape for leaf in alike[0]}) > 1:
            yield [Remedy("return one shape from all branches", own)]
        elif is_installed(call.file) and not any(_line(x.why.origin) for x in own):
            one, other = sorted((own[0].dtypes[0], own[1].dtypes[0]), key=_width)
            yield [*_given(finding, {one: other})]
        else:
            yield [*_returns(call, alike)]


def _returns(call: ControlFlow, alike: Sequence[Sequence[RefusedLeaf]]) -> Iterator[Remedy]:
    """To begin what was there in the other dtype, or to return one dtype."""
    own, first = [x for of_path in alike for x in of_path], alike[0]
    name = _name([of_path[0] for of_path in alike])
    kept, made = ([x for x in first if bool(x.kept) == y] for y in (True, False))
    dtypes = list(dict.fromkeys(x.dtypes[0] for x in first))
    if kept and made and len(dtypes) == 2:
        (old,), (new,), line = kept[0].dtypes, made[0].dtypes, kept[0].why.root
        if change_of(old, new) in ("wider", "another kind") and _line(line):
            places = [x[0].place for x in alike if x[0].place is not None]
            about = call.bodies, kept[0].branch, places, new
            held = [
                x.kept.rpartition(", ")[0] for of_path in alike for x in of_path if x.kept
            ]
            held = ", ".join(held) if len(held) <= FEW else of_holders(held)
            text = f"begin {held or 'the operand'} as {new}{lost(old, new)}"
            yield Remedy(_at(line, text), own, partial(trial.branches_begin, *about))
    meant = [x.dtypes[0] for x in kept] if kept and made else []
    losses = lambda to: sum(jnp.promote_types(x, to) != to for x in dtypes)
    for to in dict.fromkeys([*meant, *sorted(dtypes, key=losses)]):
        others = [x for x in first if x.dtypes[0] != to]
        if all(fits(x.dtypes[0], to) or rank(to) > rank(x.dtypes[0]) for x in others):
            (old, *_) = [x.dtypes[0] for x in others]
            names = " and ".join(dict.fromkeys(x.branch for x in others))
            text = f"let {names} return {name} as {to}: {_cast(to, old)}{lost(old, to)}"
            line = others[0].why.origin if len(others) == 1 else None
            yield Remedy(_at(line, text), own, lambda: True, _narrowed(old, to))


def _width(dtype: DType) -> tuple[int, int]:
    """By which the wider of two types comes last: its kind, then its size."""
    return rank(dtype), dtype.itemsize


# Arguments and results


def _of_arguments(call: RefusedCall, finding: Finding) -> Iterator[Sequence[Remedy]]:
    site, leaves = finding.sites[-1], finding.leaves
    if call.is_update:
        yield [Remedy(_WRAP, leaves)]
        return
    named = [leaf for leaf in leaves if leaf.argument]
    if call.keeps or not named:
        return
    if call.wanted is None:
        ways = _to_meet(named)
    else:
        ways = [[(leaf, call.wanted) for leaf in named]]
    singles = ways[0] if call.wanted and len(ways[0]) > 1 else ()
    if is_installed(site.file):
        yield [*_of_users_call(call, finding, ways)]
    else:
        yield [
            *(_casts(way, site, leaves) for way in ways),
            *(_if_it_holds(_casts([x], site, leaves)) for x in singles),
        ]


def _if_it_holds(remedy: Remedy) -> Remedy:
    """A remedy that is said only if it was tried with success."""
    return remedy._replace(trial=lambda: bool(remedy.trial()))


_Casts = Sequence[tuple[RefusedLeaf, DType]]


def _casts(casts: _Casts, site: Site, leaves: Sequence[RefusedLeaf]) -> Remedy:
    """To cast some arguments, each at its line."""
    sentences, to = [], []
    for leaf, dtype in casts:
        sentences.append(_of_argument(leaf, dtype, site))
        to += _narrowed(leaf.dtypes[-1], dtype)
    text = ".\nAnd ".join(dict.fromkeys(sentences))
    changes = {id(leaf.argument.value): dtype for leaf, dtype in casts if leaf.argument}
    values = {leaf.path: leaf.values[-1] for leaf, _ in casts}  # which keeps them alive

    def change(leaf: Leaf) -> Leaf:
        known = changes.get(id(leaf)) if values else None
        return leaf if known is None else trial.cast_to(leaf, known)

    frame = site.inside[0] if site.inside else None
    first = frozenset(leaf.number for leaf, _ in casts)
    return Remedy(text, leaves, partial(trial.accepts, frame, change), tuple(to), first)


def _of_argument(leaf: RefusedLeaf, dtype: DType, site: Site) -> str:
    """What to write for one argument: the source of a number, else the argument."""
    argument, value, old = leaf.argument, leaf.values[-1], leaf.dtypes[-1]
    name = (argument and argument.is_whole and argument.text) or leaf.path
    source = argument.source if argument else None
    number = getattr(source, "lineno", None) or site.line
    where, made = line_text(site.file, number), leaf.why.origin
    is_of_host = is_python_number(value) or isinstance(value, (np.ndarray, np.generic))
    if is_of_host and _line(made) and leaf.why.cause is None and dtype != float0:
        where = _line(made)
    if dtype == float0:
        return f"at {where} give {name} as np.zeros({np.shape(value)}, jax.dtypes.float0)"
    if isinstance(value, np.dtype) and _line(made):
        return f"at {_line(made)} begin {name.removesuffix('.dtype')} as {dtype}"
    if isinstance(value, np.dtype):
        return f'at {where} ask for dtype="{dtype}"'
    if is_python_number(value):
        number = trial.cast_to(value, dtype)
        loss = lost(old, dtype) if number != value else ""
        return f"at {where} make {name} {_A[kind(dtype)]}: {number!r}{loss}"
    return f"at {where} cast {name} to {dtype}: {_cast(dtype, old)}{lost(old, dtype)}"


_A: dict[str | None, str] = {
    "int": "an int",
    "float": "a float",
    "complex": "a complex number",
    "bool": "a bool",
}


def _to_meet(leaves: Sequence[RefusedLeaf]) -> list[_Casts]:
    """The casts after which some arguments have one dtype: the best way and another."""
    of = lambda leaf: dtype_of(leaf.values[-1])
    base = lambda leaf: leaf.argument.base if leaf.argument else ""
    dtypes = list(dict.fromkeys(map(of, leaves)))
    kept = [x for x in leaves if base(x) in ("operand", "array", "primals")]
    if {base(x) for x in leaves} & {"min", "max"}:
        kept += [x for x in leaves if base(x) == "x"]
    narrow, *_, wide = sorted(dtypes, key=_width)
    targets = [wide, narrow] if rank(narrow) == rank(wide) else [wide]
    if kept:
        targets = [of(kept[0])]  # it is written to, or clamped
    elif {base(x) for x in leaves} <= {"lower", "upper"}:
        targets = [np.dtype("int32")]
    elif wide.itemsize == 8 and rank(narrow) == rank(wide):
        targets = [narrow, wide]
    else:
        forced = {of(x) for x in leaves if x.why.cause}
        is_float = kind(wide) != "int"  # a narrower int wraps
        targets = targets[::-1] if forced == {wide} and is_float else targets
    ways: list[_Casts] = [[(x, to) for x in leaves if of(x) != to] for to in targets]
    is_written = lambda way: all(x.argument and x.argument.source for x, _ in way)
    return [way for way in ways if is_written(way)] or ways[:1]


def _of_users_call(
    call: RefusedCall, finding: Finding, ways: Sequence[_Casts]
) -> Iterator[Remedy]:
    """To cast an argument of the user's own call of a package that is refused inside."""
    refused = [leaf for way in ways for leaf, _ in way]
    pairs = {(leaf.dtypes[-1], to) for way in ways for leaf, to in way}
    is_index = any(x.argument and x.argument.base in INDICES for x in refused)
    shapes = {np.shape(x.values[-1]) for x in refused}
    for site in users_sites(finding.sites):
        for argument in written_in(site):
            own = dtype_of(argument.value)
            if is_index and np.shape(argument.value) not in shapes:
                continue  # a package may have widened the index itself
            for old, to in pairs:
                if own == old and argument.source and argument.is_whole:
                    leaf = RefusedLeaf(
                        -1, argument.text, (argument.value,), argument=argument
                    )
                    yield _casts([(leaf, to)], site, finding.leaves)
    for pair in pairs if not is_index else ():
        yield from map(_if_it_holds, _given(finding, dict([pair])))


def _given(finding: Finding, pairs: dict[DType, DType]) -> Iterator[Remedy]:
    """To give a package, or a function of JAX, its arrays in another dtype."""
    site = next(iter(users_sites(finding.sites)), None)
    others = {new: old for old, new in pairs.items()}
    if site is None:
        return
    for to in (pairs, others):
        frame = site.inside[0] if site.inside else None
        sentences = [f"its {old} arrays as {new}" for old, new in to.items()]
        where = line_text(site.file, site.line)
        text = f"at {where} give {site.name or 'the call'} {' and '.join(sentences)}"
        text += f": {_cast(next(iter(to.values())))}"
        change = lambda x, to=to: (
            trial.cast_to(x, to[dtype_of(x)]) if is_array(x) and dtype_of(x) in to else x
        )
        narrow = tuple(x for pair in to.items() for x in _narrowed(*pair))
        yield Remedy(text, finding.leaves, partial(trial.accepts, frame, change), narrow)


def _of_result(call: RefusedCall, finding: Finding) -> Iterator[Sequence[Remedy]]:
    (leaf,) = finding.leaves
    (old,), wanted = leaf.dtypes, call.wanted
    text = f"let {call.name} return {_A[kind(wanted)]}: {_cast(wanted, old)}"
    if kind(wanted) == "bool":
        text = f"let {call.name} return a bool: ... != 0"
    elif kind(old) != "complex":
        text += "; its gradient is zero"
    yield [Remedy(_at(leaf.why.origin, text), finding.leaves, lambda: True)]


def _of_rule(call: RefusedCall, finding: Finding) -> Iterator[Sequence[Remedy]]:
    (leaf,) = finding.leaves
    text = f"let {call.name} return {leaf.path} as {call.wanted}: {_cast(call.wanted)}"
    yield [Remedy(_at(leaf.why.root, text), finding.leaves)]


def _of_lowered(call: RefusedCall, finding: Finding) -> Iterator[Sequence[Remedy]]:
    if call.wanted is not None:
        (leaf,) = finding.leaves
        text = f"compute {call.name} in {call.wanted}: cast its operand, and back"
        yield [Remedy(_at(leaf.why.root, text), finding.leaves)]


def _of_compiled(call: RefusedCall, finding: Finding) -> Iterator[Sequence[Remedy]]:
    casts = [(x, x.dtypes[0]) for x in finding.leaves if x.argument]
    keep = "compile a function that keeps its types: dtypeguard.guard_step(step)"
    cast = _casts(casts, finding.sites[-1], finding.leaves)._replace(trial=untried)
    yield [cast, Remedy(keep, finding.leaves)]


def _of_checked(call: RefusedCall, finding: Finding) -> Iterator[Sequence[Remedy]]:
    leaves = finding.leaves
    site = next(site for site in users_sites(finding.sites) if site.inside)
    if call.wanted is not None:
        yield [_casts([(leaf, call.wanted) for leaf in leaves], site, leaves)]
    elif len({x.dtypes[0] for x in leaves}) == 2 and all(kind(x.dtypes[0]) for x in leaves):
        ways = (_casts(way, site, leaves) for way in _to_meet(leaves))
        yield [*map(_if_it_holds, ways)]


_Of = Callable[[RefusedCall, Finding], Iterable[Sequence[Remedy]]]
_OF_CALLS: dict[str, _Of] = {
    "argument": _of_arguments,
    "result": _of_result,
    "rule": _of_rule,
    "lowered": _of_lowered,
    "compiled": _of_compiled,
    "checked": _of_checked,
}
