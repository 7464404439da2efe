"""What to write where the loop, or the branches, that JAX refuses are a package's."""

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import FunctionType, ModuleType

import jax.numpy as jnp
from jax import tree_util

from .._leaves.compat import x64_enabled
from .._leaves.dtypes import dtype_of, fits, is_array, kind
from .._leaves.rows import cast_text
from .._leaves.types import DType, Leaf, PyTree
from .._lines.sites import Site, written_in
from .._source.assigned import assigned_value
from .._source.files import is_installed, line_text, package
from .._source.origin import Origin
from .._source.syntax import evaluated
from .begin import begin_text
from .finding import Finding, RefusedLeaf
from .frames import ControlFlow
from .remedies import Remedy, Way, untried
from .reruns import Outcome
from .trials import Trials

_WRAP = "wrap the optimizer: dtypeguard.guard(opt)"


def is_own(line: Origin | None) -> bool:
    """Whether a line, or the one that called its package, is in the user's own code."""
    return line is not None and not is_installed(line.users.file)


def is_of_optimizer(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> bool:
    """Whether an Optax optimizer is at fault: it made the call, or it has all the lines."""
    lines = [leaf.why.origin for leaf in leaves if leaf.why.origin is not None]
    return call.is_update or (bool(lines) and all(line.is_of_optimizer for line in lines))


def is_of_package(call: ControlFlow, leaves: Sequence[RefusedLeaf]) -> bool:
    """Whether a package wrote a loop, and no line of the user's runs in it."""
    return (
        is_installed(call.file)
        and not is_of_optimizer(call, leaves)
        and all(len(set(leaf.dtypes)) == 2 for leaf in leaves)
        and not any(leaf.why.origin and leaf.why.origin.outermost for leaf in leaves)
    )


def wrapped(finding: Finding, trials: Trials, otherwise: Callable[[], Outcome]) -> Remedy:
    """What to write where an Optax optimizer is at fault.

    Args:
        finding: of the error.
        trials: that try it.
        otherwise: the trial where the error is not one of a call of `update`.
    """
    for site in users_sites(finding):
        function = getattr(site.node, "func", None)
        if getattr(function, "attr", "") == "update":
            return Remedy([Way(_WRAP, partial(trials.wrapped, site))], finding.leaves)
    return Remedy([Way(_WRAP, otherwise)], finding.leaves)


def users_sites(finding: Finding) -> list[Site]:
    """The user's own lines that an error passed through, inside out."""
    return [site for site in reversed(finding.sites) if not is_installed(site.file)]


def give_as_returned(
    call: ControlFlow, finding: Finding, leaves: Sequence[RefusedLeaf], trials: Trials
) -> Remedy:
    """What to give to a function of JAX or of a package that contains the loop."""
    pairs = [leaf.dtypes for leaf in leaves]
    # A package may start the loop in a type of its own, which what it is given has to have.
    is_meant = all(leaf.is_castable and is_own(leaf.why.cause) for leaf in leaves)
    is_meant = is_meant and not call.is_of_jax
    # The wider type loses nothing, whichever of the two the loop starts with.
    is_narrowed = lambda old, new: fits(old, new) and old.itemsize > new.itemsize
    pairs = [pair[::-1] if is_meant or is_narrowed(*pair) else pair for pair in pairs]
    remedy = give(call, finding, pairs, trials)
    lines = [leaf.why.begun for leaf in leaves]
    if call.is_of_jax or len(leaves) < len(finding.leaves) or not all(map(is_own, lines)):
        return remedy
    # The first value is the user's.
    types = {leaf.place: leaf.values[1] for leaf in leaves if leaf.place is not None}
    text = begin_text(finding, leaves, "begin") if len(set(map(str, lines))) == 1 else ""
    if finding.program is None or " in place of " not in text:
        return remedy
    trial = partial(trials.begun, call.bodies["body"], finding.program, types)
    return remedy._replace(ways=[Way(text, trial), *remedy.ways])


def give(
    call: ControlFlow, finding: Finding, pairs: Iterable[Sequence[DType]], trials: Trials
) -> Remedy:
    """Says in which dtypes to give what, to the function that contains a call.

    Args:
        call: of control flow.
        finding: of the error.
        pairs: a wrong dtype and the right one, of each leaf; the other way is tried next.
        trials: that try it.
    """
    pairs = list(dict.fromkeys(map(tuple, pairs)))
    site = next(iter(users_sites(finding)), None)
    others = [pair[::-1] for pair in pairs]
    ways = [*_floats(site, trials)] if site and _widens_an_int(pairs) else []
    ways += [_give(call, those, site, trials) for those in (pairs, others)]
    ways += [*flag(site, trials)] if all(map(are_of_flag, pairs)) else []
    return Remedy(ways, finding.leaves, True, nothing(finding))


def _widens_an_int(pairs: Iterable[Sequence[DType]]) -> bool:
    """Whether each pair is of an int and a float."""
    return all({*map(kind, pair)} == {"int", "float"} for pair in pairs)


def _floats(site: Site, trials: Trials) -> Iterator[Way]:
    """A float for an int that the user's call gives, or that its object was made with."""

    def way(source: ast.expr, number: int, trial: Callable[[], Outcome]) -> Way:
        text = f"write {float(number)!r} in place of {number}"
        return Way(f"at {line_text(site.file, source.lineno)} {text}", trial)

    for source, number in _ints(site.node):
        trial = partial(trials.expression, site, {source: repr(float(number))})
        yield way(source, number, lambda trial=trial: bool(trial()))
    owner = getattr(getattr(site.node, "func", None), "value", None)
    name = owner.id if isinstance(owner, ast.Name) else ""
    made = assigned_value(site.file, name, site.line) if name else None
    numbers = _ints(made)
    if len(numbers) == 1:
        yield way(*numbers[0], untried)


def _ints(node: ast.AST | None) -> list[tuple[ast.expr, int]]:
    """The ints that are written out among the arguments of a call."""
    keywords = [x.value for x in getattr(node, "keywords", ())]
    given = [*getattr(node, "args", ()), *keywords]
    pairs = [(x, x.value) for x in given if isinstance(x, ast.Constant)]
    return [(source, number) for source, number in pairs if type(number) is int]


def _give(
    call: ControlFlow, pairs: Sequence[Sequence[DType]], site: Site | None, trials: Trials
) -> Way:
    wrong = {old for old, _ in pairs}
    names = [
        name
        for name, value in call.given.items()
        if any(dtype_of(leaf) in wrong for leaf in tree_util.tree_leaves(value))
    ]
    what = f"its {' and its '.join(names)}" if names else "arrays"
    function, line = call.container or "JAX", call.line and call.line.called_from
    if line is not None and is_installed(call.file):
        function, what = package(call.file), f"its arrays at {line}"
    casts = {str(new): cast_text(new) for _, new in pairs}
    dtypes = " or ".join(casts)
    text = f"give {function} {what} as {dtypes}: {' or '.join(casts.values())}"
    return Way(text, partial(tried_as, site, pairs, trials))


def tried_as(
    site: Site | None, pairs: Iterable[Sequence[DType]], trials: Trials
) -> Outcome:
    """Whether a call traces if what it is given has other dtypes."""
    to = dict(map(tuple, pairs))
    converted: set[DType] = set()  # no tree, which a trial would copy

    def cast(leaf: Leaf) -> Leaf:
        if not is_array(leaf) or dtype_of(leaf) not in to:
            return leaf
        converted.add(dtype_of(leaf))
        return leaf.astype(to[dtype_of(leaf)])

    convert = partial(tree_util.tree_map, cast)
    outcome = trials.given(site, convert) if site else None
    return outcome if converted or outcome is False else None


def are_of_flag(dtypes: Iterable[DType]) -> bool:
    """Whether some dtypes are one with x64 off."""
    return len({_NARROW.get(dtype, dtype) for dtype in dtypes}) == 1


def flag(site: Site | None, trials: Trials) -> Iterator[Way]:
    """To turn x64 off around a call of the user's, and where its wide arrays are made."""
    if site is None or not x64_enabled():
        return
    wide = [x for x in written_in(site) if x.source and dtype_of(x.value) in _NARROW]
    names = dict.fromkeys(x.text for x in wide)
    made = f", and where {' and '.join(names)} {'are' if len(names) > 1 else 'is'} made"
    text = f"turn x64 off around {line_text(site.file, site.line)}{made if names else ''}"

    def trial() -> Outcome:
        if not names:
            return trials.expression(site, x64=False)
        return trials.given(site, _narrow, x64=False)

    yield Way(f"{text}: with jax.enable_x64(False)", trial)


_NARROW = {
    jnp.dtype(f"{name}64"): jnp.dtype(f"{name}32") for name in ("int", "uint", "float")
}


def _narrow(tree: PyTree) -> PyTree:
    cast = lambda x: x.astype(_NARROW[dtype_of(x)]) if dtype_of(x) in _NARROW else x
    return tree_util.tree_map(lambda x: cast(x) if is_array(x) else x, tree)


def nothing(finding: Finding) -> str:
    """What is said where nothing that the user gives to a package changes anything.

    A Python number or an object that is given may: no trial has converted that.
    """
    lines = [x for leaf in finding.leaves for x in (leaf.why.root, leaf.why.origin) if x]
    inside = next((line for line in lines if is_installed(line.file)), None)
    site = next(iter(users_sites(finding)), None)
    if inside is None or (site and not all(map(is_array, _given(site)))):
        return ""
    name = package(inside.file)
    return f"nothing that you give to {name} changes that: it has the type at {inside}"


def _given(site: Site) -> Iterator[Leaf]:
    """What a call of the user's gives, as far as its source writes it or looks it up."""
    node = site.node
    given = [*getattr(node, "args", ()), *(x.value for x in getattr(node, "keywords", ()))]
    given.append(getattr(getattr(node, "func", None), "value", None))  # of a method
    for each in given:
        value = getattr(each, "value", None)  # of a number that is written out
        found = value if isinstance(each, ast.Constant) else evaluated(each, site.frame)
        if not isinstance(found, (ModuleType, FunctionType, type, str, bool)):
            yield from tree_util.tree_leaves(found)
