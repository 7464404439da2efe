"""The leaves of a carry that come back in another type, and the lines behind that."""

import ast
from collections.abc import Callable, Iterator, Sequence

from jax import tree_util

from .._leaves.dtypes import dtype_of, is_weak, kind
from .._leaves.paths import keys
from .._leaves.rows import count
from .._lines.body import difference
from .._lines.drift import Drift, drift_between
from .._lines.provenance import TypeProvenance
from .._source.files import is_installed
from .._source.origin import Origin, Why
from .finding import Finding, RefusedLeaf
from .frames import ControlFlow

_SOME = 50  # leaves that are looked at
_NEAR = 15  # lines: what a body reads is near, what a setup made is not


def find_in_loop(
    call: ControlFlow, provenance: TypeProvenance, is_meant: Callable[..., bool]
) -> Finding | None:
    """The leaves of a carry that come back in another dtype or shape.

    Equinox compares the carry before there is a jaxpr: then its tracers have the lines.
    """
    body = call.bodies["body"]

    def drifting() -> Iterator[Iterator[Drift]]:
        yield from body.drifts(provenance, call.first)
        if call.kind.is_equinox:
            yield _compared(call, provenance)

    places = [body.name + path for path in body.carried.paths]
    for drifts in drifting():
        meant: dict[str, Drift] = {}
        for drift in drifts:
            if is_meant(*drift.avals):
                meant.setdefault(drift.path, drift)
        if not meant:
            continue
        # No line in what JAX wrote is anything to the user.
        line = call.line if call.is_of_jax else None
        leaves = []
        for number, drift in enumerate(meant.values()):
            place = places.index(drift.path) if drift.path in places else None
            stays = [n for n, path in enumerate(places) if path not in meant]
            is_shared = not (drift.origin and drift.origin.is_of_optimizer)
            is_shared &= _is_shared(call, provenance, place, stays, drift.begun)
            begun = None if is_shared else _made(drift.begun, call, provenance)
            if is_shared and (copied := _copied(call, provenance, place, drift.begun)):
                begun = copied
            why = Why(drift.origin or line, drift.cause, begun)
            leaf = RefusedLeaf(
                number,
                call.users_path(drift.path),
                drift.avals,
                why,
                place,
                drift.is_castable,
            )
            is_of_first = is_shared or _is_of_first(leaf, call)
            leaves.append(leaf._replace(is_of_first=is_of_first))
        some, verb = count(leaves), "comes" if len(leaves) == 1 else "come"
        headline = call.kind.headline.format(some=some, verb=verb, name=call.kind.name)
        return Finding(headline, leaves, call)
    return None


def _is_of_first(leaf: RefusedLeaf, call: ControlFlow) -> bool:
    """Whether the first value of a leaf is rather to be changed than what a body does.

    It is where a number gives way, where its kind changes by what is far from the loop, and
    where the dtype in which it begins is the rarer one of what the loop was given.
    """
    (old, new), why = leaf.dtypes, leaf.why
    if why.begun is None or is_installed(why.begun.users.file):
        return False
    if is_weak(leaf.values[0]) or why.origin is None:
        return True
    if why.origin.is_of_optimizer:
        return False
    forced, where = (why.cause or why.origin).users, why.origin.users
    is_near = forced.file == where.file and abs(forced.line - where.line) <= _NEAR
    if kind(old) != kind(new):
        return not leaf.values[0].shape or not is_near
    if is_near and why.cause is None:  # the user's own cast
        return False
    have = [sum(dtype_of(x) == dtype for x in call.first) for dtype in (old, new)]
    return have[0] <= have[1]


def _is_shared(
    call: ControlFlow,
    provenance: TypeProvenance,
    place: int | None,
    stays: Sequence[int],
    begun: Origin | None,
) -> bool:
    """Whether a leaf that stays as it is begins as the same array, or as that of its name.

    To change the line would change both, such as the params that an average begins with.
    """
    if place is None or begun is None or place >= len(call.first):
        return False
    paths, leaf = call.bodies["body"].carried.paths, call.first[place]
    others = [n for n in stays if n < len(call.first)]
    alike = [n for n in others if keys(paths[n])[-1:] == keys(paths[place])[-1:]]
    alike = [
        n for n in alike if dtype_of(call.first[n]) == dtype_of(leaf) and keys(paths[n])
    ]
    return any(call.first[n] is leaf for n in others) or any(
        provenance.of_leaf(call.first[n]) == begun for n in alike[:_SOME]
    )


def _copied(
    call: ControlFlow, provenance: TypeProvenance, place: int | None, begun: Origin | None
) -> Origin | None:
    """The line that made a first value of another one, if that is the user's own."""
    made = provenance.of_value(call.first[place]).origin if place is not None else None
    is_own = made is not None and not is_installed(made.users.file)
    return made if is_own and str(made) != str(begun) else None


def _made(
    line: Origin | None, call: ControlFlow, provenance: TypeProvenance
) -> Origin | None:
    """The line of a first value; None for one that only hands it on.

    That is the line of the loop if its arguments are variables, and that of a package which
    calls the loop.
    """
    if line is None:
        return None
    if line.called_from is not None:
        return None if provenance.is_passed(line.users) else line
    given = getattr(call.written, "args", ())
    makes = (ast.Call, ast.BinOp)
    is_plain = given and not any(isinstance(y, makes) for x in given for y in ast.walk(x))
    is_of_loop = call.line is not None and str(line) == str(call.line)
    return None if is_plain and is_of_loop else line


def _compared(call: ControlFlow, provenance: TypeProvenance) -> Iterator[Drift]:
    """What differs between the two carries that Equinox compares."""
    body, pairs = call.bodies["body"], zip(*map(tree_util.tree_leaves, call.compared))
    for path, (old, new) in zip(body.carried.paths, pairs):
        if what := difference(old, new):
            lines = provenance.of_value(new) if what == "dtype" else None
            yield drift_between(body.name + path, what, old, new, lines=lines)
