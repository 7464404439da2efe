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
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from .._carry.split import SplitTree
from .._leaves.cast_text import lost
from .._leaves.dtypes import dtype_of, is_python_number, is_weak, kind, rank
from .._leaves.internals import STATEFUL
from .._leaves.leaf_type import type_text
from .._leaves.table import FEW, grouped
from .._leaves.types import DType, Leaf
from .._lines.body import Body, difference
from .._lines.monitored import RECORD
from .._lines.path_text import of_holders
from .._lines.sites import Site
from .._source.files import is_installed, line_text, package, short_path
from .._source.origin import Origin, frame_of, is_update
from .._source.syntax import CASTING
from .finding import Finding, RefusedCall, RefusedLeaf
from .frames import ControlFlow

# What is to be written for a leaf of a carry, the best first, by what becomes of it.
_OF_A_CARRY = {
    "wider": ("begin", "guard"),  # what begins wide loses nothing
    "narrower": ("cast", "guard"),
    "weak": ("begin",),
    "of another shape": ("begin",),
    "what an optimizer makes it": ("guard",),
}
_CHECKED = "Checked: with this change the types agree."
_ROUNDS = "A cast to {} rounds: dtypeguard.audit_precision measures what that loses."


class Change(NamedTuple):
    """What is to be written at a line: a verb, for what, and the rest of the sentence."""

    line: str
    verb: str
    name: str
    rest: str


class Remedy(NamedTuple):
    """One way of mending leaves; those whose numbers are in `first` stand first."""

    changes: Sequence[Change]
    is_checked: bool = False
    first: frozenset[int] = frozenset()


def choose(finding: Finding) -> Finding:
    """What is found with what to write, the leaves that are to be changed first."""
    sentences, leaves, is_checked = list[str](), [*finding.leaves], False
    for ways in _remedies(finding):
        for word, way in zip(("", "or "), ways):
            first, *others = _sentences(way.changes)
            sentences += [word + first, *(f"and {x}" for x in others)]
            is_checked |= way.is_checked
            if not word:
                leaves.sort(key=lambda leaf: leaf.number not in way.first)
    told = [f"{x[0].upper()}{x[1:]}." for x in dict.fromkeys(sentences)]
    text = " ".join(told)
    guarded = [str(x.dtypes[0]) for x in leaves if x.is_castable and "guard_step" in text]
    narrow = [x for x in ("bfloat16", "float16") if x in guarded or f'("{x}")' in text]
    rounds = _ROUNDS.format(" and ".join(narrow))
    told += [_CHECKED] * is_checked + [rounds] * bool(narrow)
    return finding._replace(leaves=leaves, remedies=told)


def _sentences(changes: Sequence[Change]) -> Iterator[str]:
    """A sentence for all of which the same is to be said at one line."""
    for group in grouped(changes, lambda x: x._replace(name="")):
        names, (line, verb, _, rest) = [x.name for x in group], group[0]
        name = " and ".join(names) if len(names) <= FEW else of_holders(names)
        yield f"{f'at {line} ' * bool(line)}{verb} {name}{rest}"


def _remedies(finding: Finding) -> Iterator[Iterator[Remedy]]:
    """The ways of mending what an error is about: of each sequence one is to be chosen."""
    if _is_of_optimizer(finding):
        wrap = Change("", "wrap", "the optimizer", ": dtypeguard.guard(opt)")
        yield iter([Remedy([wrap])])
    elif isinstance(finding.of, RefusedCall):
        yield _of_call(finding.of, finding.leaves)
    elif finding.of.is_loop:
        yield _of_loop(finding.of, finding.leaves)
    elif any(_line(x.why.origin) for x in finding.leaves):  # not in a package's branches
        by_path = grouped(finding.leaves, lambda leaf: leaf.path)
        key = lambda own: tuple((x.branch, str(x.dtypes[0]), bool(x.kept)) for x in own)
        yield from map(_of_branches, grouped(by_path, key))


def _is_of_optimizer(finding: Finding) -> bool:
    """Whether an Optax optimizer is at fault: it made the call, or it has all the lines."""
    packages = itertools.takewhile(lambda x: is_installed(x.file), reversed(finding.sites))
    if is_update([frame_of(site.frame) for site in packages]):
        return True
    lines = [x.why.origin for x in finding.leaves if x.why.origin and not x.kept]
    of = lambda line: line.is_of_optimizer or line.is_of_apply_updates
    is_flow = isinstance(finding.of, ControlFlow)
    return is_flow and any(x.is_of_optimizer for x in lines) and all(map(of, lines))


def _width(dtype: DType) -> tuple[int, int]:
    """What is greater for a dtype that holds more."""
    return rank(dtype), dtype.itemsize


def _line(line: Origin | None) -> str:
    """The user's own line; empty if it is not known, or a package's."""
    return str(line.users) if line and not is_installed(line.users.file) else ""


def _cast(dtype: DType, old: DType) -> str:
    """A cast as it is written, which needs no name of the file, with what it loses."""
    real = ".real" * (kind(old) == "complex" and kind(dtype) != "complex")
    return f'{real}.astype("{dtype}"){lost(old, dtype)}'


# Loops


def _of_loop(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> Iterator[Remedy]:
    """To mend each leaf by its first form; to guard the body where that mends all."""
    has_own_lines = any(x.why.origin and x.why.origin.outermost for x in leaves)
    is_others = call.is_of_jax or (is_installed(call.file) and not has_own_lines)
    of = lambda leaf: ("begin",) if is_others else _OF_A_CARRY[_becomes(leaf)]
    begin = [x for x in leaves if of(x)[0] == "begin"]
    has_lines = all(_line(x.why.begun) or (x.is_of_first and not is_others) for x in begin)
    if is_others and not has_lines:
        return iter(())  # nobody edits its body
    is_checked, guard = _agree(call.bodies["body"], leaves, begin), _guard(call, leaves)
    make = {
        "begin": lambda leaf: _begin(leaf) if is_checked is not False else None,
        "cast": _cast_back,
        "guard": lambda leaf: guard if leaf.is_castable else None,
    }
    changes = [*filter(None, dict.fromkeys(make[of(x)[0]](x) for x in leaves))]
    is_guarded = all("guard" in of(x) and x.is_castable for x in leaves)
    is_alone = is_guarded and guard in changes
    ways = [Remedy(changes, bool(is_checked))] if changes and not is_alone else []
    if guard and is_guarded:
        # What begins on no line that could be named is guarded first.
        ways.insert(has_lines, Remedy([guard]))
    return iter(ways)


def _becomes(leaf: RefusedLeaf) -> str:
    """What becomes of a leaf of a carry, as the table says it."""
    origin = leaf.why.origin
    if leaf.is_reshaped:
        return "of another shape"
    if is_weak(leaf.values[0]):
        return "weak"
    if origin and (origin.is_of_optimizer or origin.is_of_apply_updates):
        return "what an optimizer makes it"
    old, new = map(_width, leaf.dtypes)
    return "wider" if new > old else "narrower"


def _begin(leaf: RefusedLeaf) -> Change:
    old, new = leaf.dtypes
    to = type_text(leaf.values[1]) if leaf.is_reshaped else str(new)
    rest = f" as {to}{lost(old, new) * (kind(new) != kind(old))}"
    return Change(_line(leaf.why.begun), "begin", leaf.path, rest)


def _cast_back(leaf: RefusedLeaf) -> Change:
    rest = f" back to {leaf.dtypes[0]}: {_cast(*leaf.dtypes)}"
    return Change(_line(leaf.why.origin), "cast", leaf.path, rest)


def _agree(
    body: Body, leaves: Sequence[RefusedLeaf], begin: Sequence[RefusedLeaf]
) -> bool | None:
    """Whether leaves of a carry come back as they are to begin; None if it is not known.

    The body is traced again, on types alone. Errors about anything else tell nothing. Other
    leaves come back as they did: another remedy mends them.
    """
    if not begin or any(leaf.place is None for leaf in begin):
        return None
    parts = SplitTree(body.inputs)
    start = len(SplitTree(body.inputs[: body.carry]).arrays)

    def run(arrays: Sequence[Leaf]) -> Sequence[Leaf]:
        returned = body.function(*parts.merged(arrays))
        return SplitTree(returned[0] if body.is_pair else returned).arrays

    first = {start + (leaf.place or 0): leaf.values[1] for leaf in begin}
    returned = {leaf.place: leaf.values[1] for leaf in leaves}
    silent = contextlib.redirect_stdout(io.StringIO())
    try:
        with RECORD.unseen(), silent, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has printed and warned before
            types = jax.eval_shape(list, parts.arrays)
            types = [first.get(place, x) for place, x in enumerate(types)]
            found = jax.eval_shape(run, types)
    except Exception as error:
        is_of_types = type(error) is TypeError or any(x.is_reshaped for x in begin)
        return False if is_of_types else None
    return all(
        is_weak(old) or not difference(returned.get(place, old), new)
        for place, (old, new) in enumerate(zip(types[start:], found))
    )


def _guard(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> Change | None:
    """To guard the body; None where no guard sees what a package keeps."""
    code = call.bodies["body"].code
    name, carry = code.co_name if code else "body", call.kind.carry
    line, what = _line(call.line), "the body"
    if is_installed(call.file):
        frames = [x.why.origin.outermost for x in leaves if x.why.origin]
        frame = next(filter(None, frames), None)
        if frame is None or package(call.file) in STATEFUL:
            return None
        name, carry = frame.function.rpartition("<locals>.")[2], call.carry
        line, what = "", f"what you give to {package(call.file)}"
        if short_path(call.file).startswith(os.path.join("flax", "core")):
            carry = int("." not in name)  # Linen gives it the module first
    name = name if name.replace(".", "").isidentifier() else "lambda ..."
    given = f"{name}, carry={carry}" if carry else name
    return Change(line, "guard", what, f": dtypeguard.guard_step({given})")


# Branches


def _of_branches(alike: Sequence[Sequence[RefusedLeaf]]) -> Iterator[Remedy]:
    """To begin what was there in the other dtype, or to return one dtype.

    Args:
        alike: leaves of which the branches return the same types, by path.
    """
    first, names = alike[0], [own[0].path for own in alike]
    kept, made = ([x for x in first if bool(x.kept) == y] for y in (True, False))
    dtypes = list(dict.fromkeys(x.dtypes[0] for x in first))
    if kept and made and len(dtypes) == 2:
        (old,), (new,) = kept[0].dtypes, made[0].dtypes
        line = "" if kept[0].why.is_earlier else _line(kept[0].why.root)
        code = made[0].why.origin.users.code if made[0].why.origin else ""
        is_cast = any(f"{x}(" in code for x in CASTING)  # of the user's: it is to change
        if _width(new) > _width(old) and line and not is_cast:
            what, rest = f"what {kept[0].branch} returns", f" as {new}{lost(old, new)}"
            yield Remedy([Change(line, "begin", what, rest)])
    meant = {x.dtypes[0] for x in kept} if made else ()
    for to in sorted(dtypes, key=lambda x: (x in meant, _width(x)), reverse=True):
        others = [x for x in first if x.dtypes[0] != to]
        if others and rank(to) == max(map(rank, dtypes)):
            verb = f"let {' and '.join(x.branch for x in others)} return"
            line = _line(others[0].why.origin) if len(others) == 1 else ""
            rest = f" as {to}: {_cast(to, others[0].dtypes[0])}"
            yield Remedy([Change(line, verb, path, rest) for path in names])


# Arguments

_PYTHONS = {"int": int, "float": float, "complex": complex, "bool": bool}


def _of_call(call: RefusedCall, leaves: Sequence[RefusedLeaf]) -> Iterator[Remedy]:
    """To cast arguments: all of them, or those after which they have one dtype."""
    targets = _meeting(leaves) if call.wanted is None else [call.wanted]
    for to in targets if not call.keeps else ():
        casts = [x for x in leaves if x.dtypes[-1] != to]
        if is_installed(call.site.file):  # what the user made is cast
            casts = [x for x in casts if _line(x.why.origin)]
        if changes := [_of_argument(x, to, call.site) for x in casts]:
            yield Remedy(changes, first=frozenset(leaf.number for leaf in casts))


def _of_argument(leaf: RefusedLeaf, dtype: DType, site: Site) -> Change:
    """What to write for one argument: at its source, else in the call."""
    argument, value, why, old = leaf.argument, leaf.values[-1], leaf.why, leaf.dtypes[-1]
    name = (argument and argument.is_whole and argument.text) or leaf.path
    number = getattr(argument and argument.source, "lineno", None) or site.line
    is_of_host = is_python_number(value) or isinstance(value, (np.ndarray, np.generic))
    is_from_there = why.cause is None and not why.is_promoted
    is_inside = argument is not None and not argument.is_whole
    is_from_there &= is_of_host or is_inside or kind(dtype) != kind(old)
    made = _line(why.origin) * (is_installed(site.file) or is_from_there)
    line, to = made or line_text(site.file, number), str(kind(dtype))
    if is_python_number(value):
        cast = _PYTHONS[to](value)
        rest = f" a{'n' * (to == 'int')} {to}: {cast!r}{lost(old, dtype) * (cast != value)}"
        if type(cast) is type(value) or (to == "float" and dtype_of(cast) != dtype):
            return Change(line, "give", name, f' as jnp.asarray({value!r}, "{dtype}")')
        return Change(line, "make", name, rest)
    if made and is_from_there:
        return Change(line, "begin", name, f" as {dtype}{lost(old, dtype)}")
    return Change(line, "cast", name, f" to {dtype}: {_cast(dtype, old)}")


def _meeting(leaves: Sequence[RefusedLeaf]) -> Sequence[DType]:
    """The dtypes in which arguments meet, the best first; none if they cannot."""
    dtypes = sorted({leaf.dtypes[-1] for leaf in leaves}, key=_width)
    by_name = {x.argument.base: x.dtypes[-1] for x in leaves if x.argument}
    if len(dtypes) < 2 or not all(map(kind, dtypes)):
        return []
    if by_name.keys() <= {"lower", "upper"}:
        return [np.dtype("int32")]
    written = ["operand", "array", "primals"] + ["x"] * bool({"min", "max"} & {*by_name})
    if kept := [by_name[name] for name in written if name in by_name]:
        return kept[:1]
    if rank(dtypes[0]) != rank(dtypes[-1]):
        return dtypes[-1:]
    ways = [dtypes[0], dtypes[-1]][:: 1 if dtypes[-1].itemsize == 8 else -1]
    unwritten = {x.dtypes[-1] for x in leaves if not (x.argument and x.argument.source)}
    return [to for to in ways if unwritten <= {to}] or ways[:1]
