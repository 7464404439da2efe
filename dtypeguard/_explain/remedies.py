"""What to write, chosen by types alone: a table of (kind of place, from, to) gives a form.

The forms are five: begin the leaf in the other dtype at its line; guard the body; cast at
the line that changed the type; cast the argument; let this branch return another dtype.
That a leaf of a loop begins so is tried, and not said where that fails.
"""

import contextlib
import io
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._carry.split import SplitTree
from .._leaves.dtypes import dtype_of, fits, is_python_number, is_weak, kind, rank
from .._leaves.groups import FEW, grouped, of_holders
from .._leaves.internals import STATEFUL
from .._leaves.rows import lost, type_text
from .._leaves.types import Aval, DType, Leaf
from .._lines.body import Body, difference
from .._lines.monitored import RECORD
from .._lines.sites import Site
from .._source.files import is_installed, line_text, package, short_path
from .._source.origin import Origin, frame_of, is_update
from .._source.syntax import CASTING
from .finding import Finding, RefusedCall, RefusedLeaf, users_sites
from .frames import ControlFlow

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
# Whether the types then agree; None if that is not known.
Outcome = bool | None


class Remedy(NamedTuple):
    """One way of writing it; leaves whose numbers are in `changes` stand first."""

    text: str
    leaves: Sequence[RefusedLeaf]
    trial: Callable[[], Outcome] = lambda: None
    changes: frozenset[int] = frozenset()


class Choice(NamedTuple):
    """What a note says; `to` are the dtypes to which what is wider is cast."""

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
        yield [*_of_call(finding.of, finding)]
    elif finding.of.is_loop:
        yield [*_of_loop(finding.of, finding)]
    else:
        yield from _of_branches(finding.of, finding)


def _is_of_optimizer(finding: Finding) -> bool:
    """Whether an Optax optimizer is at fault: it made the call, or it has all the lines."""
    packages = itertools.takewhile(lambda x: is_installed(x.file), reversed(finding.sites))
    if is_update([frame_of(site.frame) for site in packages]):
        return True
    leaves = [leaf for leaf in finding.leaves if not leaf.kept] or finding.leaves
    lines = [leaf.why.origin for leaf in leaves if leaf.why.origin is not None]
    of = lambda line: line.is_of_optimizer or line.is_of_apply_updates
    is_loop_or_branch = isinstance(finding.of, ControlFlow)
    has_lines = any(x.is_of_optimizer for x in lines) and all(map(of, lines))
    return is_loop_or_branch and has_lines


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
    if is_weak(leaf.values[0]):
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
    tried = partial(_agree, call.bodies["body"], places)
    is_tried = len(places) == len(leaves)
    told = _each(leaves, lambda x: x.why.begun, text)
    return Remedy(told, leaves, tried if is_tried else lambda: None)


def _agree(body: Body, first: Mapping[int, Aval]) -> Outcome:
    """Whether leaves of a carry, by their places, come back as they are to begin.

    The body is traced again, on types alone. What raises over values tells nothing.
    """
    types = [*map(_type, SplitTree(body.inputs[body.carry or 0]).arrays)]
    begun = [first.get(number, leaf) for number, leaf in enumerate(types)]
    try:
        was, now = _returned(body, types), _returned(body, begun)
    except Exception as error:
        of_values = jax.errors.JAXTypeError, jax.errors.JAXIndexError
        return None if isinstance(error, of_values) else False
    # What else differs is as it was, and another remedy mends it.
    return all(
        not difference(old, new)
        or (is_weak(old) if number in first else not difference(new, was[number]))
        for number, (old, new) in enumerate(zip(begun, now))
    )


def _returned(body: Body, first: Sequence[Aval]) -> Sequence[Aval]:
    """The types of the carry that a body returns for another first one."""
    inputs, position = list(body.inputs), body.carry or 0
    inputs[position] = SplitTree(inputs[position]).merged(first)
    parts = SplitTree(tuple(inputs))

    def run(arrays: Sequence[Leaf]) -> Sequence[Leaf]:
        returned = body.function(*parts.merged(arrays))
        return SplitTree(returned[0] if body.is_pair else returned).arrays

    silent = contextlib.redirect_stdout(io.StringIO())
    with RECORD.unseen(), silent, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has printed and warned before
        return jax.eval_shape(run, [*map(_type, parts.arrays)])


def _type(leaf: Leaf) -> jax.ShapeDtypeStruct:
    """The type of an array or a number, weak if it is."""
    dtype = dtype_of(leaf)
    dtype = leaf.dtype if kind(dtype) is None else jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype, weak_type=is_weak(leaf))


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
        if call.is_of_nnx and own[0].path.startswith("result[0]"):  # objects given to it
            names = dict.fromkeys(leaf.branch for leaf in own if not leaf.kept)
            guarded = " and ".join(f"dtypeguard.guard_step({name})" for name in names)
            yield [Remedy(f"guard what you give to {package(call.file)}: {guarded}", own)]
        elif len({leaf.values[0].shape for leaf in alike[0]}) > 1:
            yield [Remedy("return one shape from all branches", own)]
        elif not is_installed(call.file) or any(_line(x.why.origin) for x in own):
            yield [*_returns(alike[0], _name([of_path[0] for of_path in alike]), own)]
        else:
            width = lambda dtype: (rank(dtype), dtype.itemsize)
            narrow, wide = sorted((own[0].dtypes[0], own[1].dtypes[0]), key=width)
            yield [*_given(finding, {narrow: wide})]


def _returns(
    first: Sequence[RefusedLeaf], name: str, own: Sequence[RefusedLeaf]
) -> Iterator[Remedy]:
    """To begin what was there in the other dtype, or to return one dtype."""
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
            names = " and ".join(dict.fromkeys(x.branch for x in others))
            cast = _cast(to, others[0].dtypes[0])
            line = others[0].why.origin if len(others) == 1 else None
            yield Remedy(_at(line, f"let {names} return {name} as {to}: {cast}"), own)


# Arguments

_Casts = Sequence[tuple[RefusedLeaf, DType]]


def _of_call(call: RefusedCall, finding: Finding) -> Iterator[Remedy]:
    """To cast arguments: of one call all, or those after which they have one dtype."""
    leaves, wanted = finding.leaves, call.wanted
    if call.keeps:
        return
    ways = _to_meet(leaves) if wanted is None else [[(leaf, wanted) for leaf in leaves]]
    if is_installed(call.site.file):  # nobody edits its call: what the user made is cast
        made = [[pair for pair in way if _line(pair[0].why.origin)] for way in ways]
        given = {leaf.dtypes[-1]: to for leaf, to in ways[0]}
        if not any(made) and all(kind(old) == kind(to) for old, to in given.items()):
            yield from _given(finding, given)
        ways = [way for way in made if way]
    for way in ways:
        sentences = dict.fromkeys(_of_argument(*pair, call.site) for pair in way)
        numbers = frozenset(leaf.number for leaf, _ in way)
        yield Remedy(".\nAnd ".join(sentences), leaves, changes=numbers)


def _of_argument(leaf: RefusedLeaf, dtype: DType, site: Site) -> str:
    """What to write for one argument: at its source, else in the call."""
    argument, value, why, old = leaf.argument, leaf.values[-1], leaf.why, leaf.dtypes[-1]
    name = (argument and argument.is_whole and argument.text) or leaf.path
    number = getattr(argument and argument.source, "lineno", None) or site.line
    is_number, is_other_kind = is_python_number(value), kind(dtype) != kind(old)
    is_of_host = is_number or isinstance(value, (np.ndarray, np.generic))
    is_made_so = why.cause is None and not why.is_promoted
    is_from_there = is_made_so and (is_of_host or is_other_kind)
    made = _line(why.origin) * (is_installed(site.file) or is_from_there)
    where = made or line_text(site.file, number)
    if is_number:
        word, make = _PYTHONS[str(kind(dtype))]
        if type(cast := make(value)) is type(value):
            return f'at {where} give {name} as jax.numpy.asarray({value!r}, "{dtype}")'
        loss = lost(old, dtype) * (cast != value)
        return f"at {where} make {name} {word}: {cast!r}{loss}"
    if made and is_from_there:
        return f"at {made} begin {name} as {dtype}{lost(old, dtype)}"
    return f"at {where} cast {name} to {dtype}: {_cast(dtype, old)}"


_PYTHONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "int": ("an int", int),
    "float": ("a float", float),
    "complex": ("a complex number", complex),
    "bool": ("a bool", bool),
}


def _to_meet(leaves: Sequence[RefusedLeaf]) -> Sequence[_Casts]:
    """The casts after which some arguments have one dtype: the best way and another."""
    of = lambda leaf: dtype_of(leaf.values[-1])
    base = lambda leaf: leaf.argument.base if leaf.argument else ""
    width = lambda dtype: (rank(dtype), dtype.itemsize)
    dtypes, names = sorted({*map(of, leaves)}, key=width), {*map(base, leaves)}
    if len(dtypes) < 2 or not all(map(kind, dtypes)):
        return []
    narrow, wide = dtypes[0], dtypes[-1]
    written = ("operand", "array", "primals", *("x" if names & {"min", "max"} else ()))
    if kept := [leaf for leaf in leaves if base(leaf) in written]:
        targets = [of(kept[0])]  # it is written to, or clamped
    elif names <= {"lower", "upper"}:
        targets = [np.dtype("int32")]
    elif rank(narrow) != rank(wide):
        targets = [wide]
    else:
        targets = [narrow, wide] if wide.itemsize == 8 else [wide, narrow]
    ways = [[(x, to) for x in leaves if of(x) != to] for to in targets]
    is_written = lambda way: all(x.argument and x.argument.source for x, _ in way)
    return [way for way in ways if is_written(way)] or ways[:1]


def _given(finding: Finding, pairs: dict[DType, DType]) -> Iterator[Remedy]:
    """To give a package, or a function of JAX, its arrays in another dtype."""
    for site in users_sites(finding.sites)[:1]:
        arrays = " and ".join(f"its {old} arrays as {new}" for old, new in pairs.items())
        text = f"at {line_text(site.file, site.line)} give {site.name or 'the call'}"
        text += f' {arrays}: .astype("{next(iter(pairs.values()))}")'
        yield Remedy(text, finding.leaves)
