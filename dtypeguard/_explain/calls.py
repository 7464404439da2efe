"""What to write where JAX refuses the arguments of a call, or a function's result."""

import ast
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from jax import tree_util
from jax.dtypes import float0

from .._leaves.dtypes import bits, cast, dtype_of, is_python_number, kind
from .._leaves.groups import grouped
from .._leaves.paths import keys
from .._leaves.rows import cast_text
from .._leaves.types import DType, PyTree
from .._lines.numbers import whole_on_line, with_a_point
from .._lines.sites import Argument, Site, arguments, stored, written_in
from .._source.files import is_installed, line_text, package
from .._source.syntax import evaluated, text_of
from .added import added_remedies
from .begin import dtype_on_line
from .casts import (
    ArgumentCast,
    atom,
    cast_of_users,
    casts_to_meet,
    like_others,
    sentence,
    written,
)
from .finding import Finding, RefusedCall, RefusedLeaf
from .flags import flag_ways, is_of_flag
from .linalg import unsupported_ways
from .packages import are_of_flag, flag, nothing, tried_as, wrapped
from .remedies import Remedy, Way, untried
from .reruns import Outcome
from .trials import Trials

_INT = np.dtype("int32")


def call_remedies(call: RefusedCall, finding: Finding, trials: Trials) -> Iterator[Remedy]:
    """What to write for what JAX refuses; first what would mend the cause."""
    leaves = finding.leaves
    named = [leaf.argument for leaf in leaves if leaf.argument]
    if call.keeps:
        return
    if call.is_of_others:
        ways = [*_ways_given(call, finding, named, trials)] if call.users else []
        yield Remedy(ways, leaves, True)
        return
    if call.is_added:
        yield from added_remedies(call, finding)
        return
    if call.equation is not None:
        yield Remedy([*unsupported_ways(call, finding)], leaves)
        return
    if call.is_compiled:
        yield Remedy([*_compiled_ways(call, finding, trials)], leaves)
        return
    if call.wanted == float0:
        yield Remedy([_no_tangents(named, finding.sites[-1], trials)], leaves)
        return
    if call.option and not is_installed(call.file):
        yield Remedy([*_without(call.option, finding.sites[-1], trials)], leaves)
    dtypes = {dtype_of(argument.value) for argument in named}
    if call.is_flag or is_of_flag(dtypes):
        ways = [*flag_ways(finding, trials, is_lowered=call.is_flag)]
        if call.is_flag or not all(argument.source for argument in named):  # JAX's own
            yield Remedy(ways, leaves)
            return
    for group in grouped(leaves, lambda x: (x.argument and x.argument.text, x.why.origin)):
        yield from _of_kind(group, call, finding, trials)
    if call.is_result:
        yield Remedy([*_result(call, named[0], trials)], leaves)
    elif not is_installed(call.file):
        if call.wanted and max(map(bits, dtypes)) < bits(call.wanted):  # it wants a float
            yield Remedy([*_made_as(call, finding, trials)], leaves)
        yield Remedy([*_made_of_ints(call, finding)], leaves)
        casts = [[ArgumentCast(argument, call.wanted) for argument in named]]
        if call.wanted is None:
            forced = [leaf.argument for leaf in leaves if leaf.argument and leaf.why.cause]
            code = finding.sites[-1].frame.f_code
            ways = casts_to_meet(named, forced)
            casts = [like_others(way, named, code) for way in ways]
        for way in casts:
            yield Remedy([_cast(way, finding.sites[-1], trials)], leaves)
        for one in casts[0] if call.wanted and len(named) > 1 else ():
            text, trial = _cast([one], finding.sites[-1], trials)  # one may be meant
            yield Remedy([Way(text, lambda trial=trial: bool(trial()))], leaves)
    else:
        if call.is_update:
            yield wrapped(finding, trials, untried)
        if all(is_python_number(argument.value) for argument in named):
            return  # no cast of an array changes them
        ways = [*_ways_given(call, finding, named, trials)]
        yield Remedy(ways, leaves, True, nothing(finding))


def _made_of_ints(call: RefusedCall, finding: Finding) -> Iterator[Way]:
    """To make an array of NumPy of ints where it is made: other lines may use it too."""
    lines = {leaf.why.root.users for leaf in finding.leaves if leaf.why.root}
    is_host = all(isinstance(leaf.values[0], np.ndarray) for leaf in finding.leaves)
    user = finding.sites[-1].frame.f_code.co_qualname
    if len(lines) == 1 and is_host and kind(call.wanted) == "int":
        (line,) = lines
        if line.function != user:
            yield Way(f"at {line} make it of ints: .astype(int)", untried)


def _no_tangents(casts: Sequence[Argument], site: Site, trials: Trials) -> Way:
    """Tangents of what has none."""
    shape = lambda x: f"np.shape({x.text})" if np.shape(x.value) else "()"
    new = {x.source: f"np.zeros({shape(x)}, jax.dtypes.float0)" for x in casts}
    texts = [
        f"at {line_text(site.file, x.source.lineno)} write {new[x.source]} in place of "
        f"{x.text}"
        for x in casts
        if x.source and x.is_whole
    ]
    changes = {source: text for source, text in new.items() if source}
    names = {"np": np, "np.zeros": np.zeros, "np.shape": np.shape}
    trial = partial(trials.expression, site, changes, names=names)
    return Way(".\nAnd ".join(texts), trial)


def _without(option: str, site: Site, trials: Trials) -> Iterator[Way]:
    """To leave out an option that is written in a call."""
    calls = [x for x in ast.walk(site.node or ast.Pass()) if isinstance(x, ast.Call)]
    for call in calls:
        rest = [x for x in call.keywords if x.arg != option]
        if len(rest) < len(call.keywords):
            new = ast.unparse(ast.Call(call.func, call.args, rest))
            place, old = line_text(site.file, call.lineno), text_of(call, site.file)
            text = f"at {place} write {new} in place of {old}"
            yield Way(text, partial(trials.expression, site, {call: new}))


def _compiled_ways(call: RefusedCall, finding: Finding, trials: Trials) -> Iterator[Way]:
    """What to write where a compiled function is given other types than it has."""
    (*_, site), refused = finding.sites, finding.leaves
    casts = [ArgumentCast(x.argument, x.dtypes[0]) for x in refused if x.argument]
    key = lambda argument: (argument.text, dtype_of(argument.value))
    paths = {(*key(x.argument), x.argument.name) for x in casts}
    alike = {key(x.argument) for x in casts}
    others = {(*key(x), x.name) for x in written_in(site) if key(x) in alike}
    if others == paths:  # a cast of a container would change the others
        text = sentence(casts, call.file, call.node)
        yield Way(text, partial(_tried_compiled, casts, site, trials))
    lines = [leaf.why.origin.users for leaf in refused if leaf.why.origin]
    if any((x.line, x.file) == (site.line, site.file) for x in lines):
        text = "compile a function that keeps its types: dtypeguard.guard_step(step)"
        yield Way(text, untried)


def _tried_compiled(casts: Sequence[ArgumentCast], site: Site, trials: Trials) -> Outcome:
    """Whether a compiled function gets the types that it is compiled for."""
    function = getattr(site.node, "func", None)
    meant = getattr(evaluated(function, site.frame), "args_info", None)
    types = lambda tree: tree_util.tree_map(lambda x: (x.shape, str(x.dtype)), tree)

    def called(*args: PyTree, **kwargs: PyTree) -> None:
        if types((args, kwargs)) != types(meant):
            raise TypeError("another dtype")

    changes = {x.argument.source: written(*x) for x in casts if x.argument.source}
    if meant is None or not isinstance(function, ast.expr):
        return None
    return trials.expression(
        site, {**changes, function: "called"}, names={"called": called}
    )


def _of_kind(
    leaves: Sequence[RefusedLeaf], call: RefusedCall, finding: Finding, trials: Trials
) -> Iterator[Remedy]:
    """A number of the other kind, at the user's line that gave an int or a float.

    Args:
        leaves: the arguments that are this number.
        call: that JAX refuses.
        finding: of the error.
        trials: that try it.
    """
    leaf = leaves[0]
    value, line = leaf.values[0], leaf.why.origin and leaf.why.origin.users
    base = leaf.argument.base if leaf.argument else ""
    is_count = kind(call.wanted) == "int" or base in ("lower", "upper")
    is_number = is_python_number(value) or isinstance(value, np.generic)
    given, wanted = kind(dtype_of(value)), kind(call.wanted)
    source = leaf.argument.source if leaf.argument else None
    found, dtype = None, _INT
    if line and is_number and is_count and given == "float":
        found = whole_on_line(line, value, source)
    elif line and call.wanted and wanted in ("float", "complex") and type(value) is int:
        found, dtype = with_a_point(line, value), call.wanted
    if line and found and not is_installed(line.file):
        loss = "" if float(value).is_integer() else " (the fraction is lost)"
        text = f"at {line} write {found[0]} in place of {found[1]}{loss}"
        named = [x.argument for x in finding.leaves if x.argument]
        casts = [ArgumentCast(x, dtype) for x in named]
        is_here = casts and not is_installed(call.file)  # with an int the call is accepted
        trial = partial(_tried, casts if is_here else [], finding.sites[-1], trials)
        yield Remedy([Way(text, trial)], leaves)


def _cast(casts: Sequence[ArgumentCast], site: Site, trials: Trials) -> Way:
    """What to cast in a call of the user's."""
    trial = partial(_tried, casts, site, trials)
    if stored(site):  # what is written has the type of the item then
        trial = lambda: True
    return Way(sentence(casts, site.file, site.node), trial)


def _tried(casts: Sequence[ArgumentCast], site: Site, trials: Trials) -> Outcome:
    changes = {
        cast.argument.source: written(*cast) for cast in casts if cast.argument.source
    }
    known = next(arguments(site), ())
    return trials.expression(site, changes, known=known) if changes else None


def _ways_given(
    call: RefusedCall, finding: Finding, refused: Sequence[Argument], trials: Trials
) -> Iterator[Way]:
    """What to give to a package, in the user's own call of it."""
    yield from _made_as(call, finding, trials)
    of_leaves = {x for leaf in finding.leaves for x in leaf.dtypes}
    types = sorted(of_leaves, key=_bits)
    for site, given in call.users:
        if cast := cast_of_users(refused, given, call.wanted):
            yield _cast([cast], site, trials)
        own = {dtype_of(x.value) for x in given}
        wanted = [call.wanted] if call.wanted else []
        targets = wanted or [types[-1], types[0]]
        inside = next((x.file for x in reversed(finding.sites) if is_installed(x.file)), "")
        name = package(inside) or site.name
        for to in targets:
            pairs = [(old, to) for old in types if old in own and old != to]
            if pairs and kind(to):
                what = f"its arrays at {line_text(site.file, site.line)}"
                text = f"give {name} {what} as {to}: {cast_text(to)}"
                if casts := _given_as(site, given, pairs):
                    text = sentence(casts, site.file, site.node)
                yield Way(text, partial(tried_as, site, pairs, trials))
        yield from flag(site, trials) if are_of_flag([*types, *wanted]) else ()


def _given_as(
    site: Site, given: Sequence[Argument], pairs: Sequence[tuple[DType, DType]]
) -> list[ArgumentCast]:
    """The casts of what a call gives to a package; none if some of that is computed."""
    node = site.node
    written = [*getattr(node, "args", ()), *getattr(node, "keywords", ())]
    calls = [x for part in written for x in ast.walk(part) if isinstance(x, ast.Call)]
    computed = {each for call in calls for each in ast.walk(call)}
    to = dict(pairs)
    casts = {
        x.source: ArgumentCast(x, to[dtype_of(x.value)])
        for x in reversed(given)
        if x.source and dtype_of(x.value) in to
    }
    return [] if computed & casts.keys() else [*casts.values()][::-1]


def _bits(dtype: DType) -> int:
    return dtype.itemsize


def _made_as(call: RefusedCall, finding: Finding, trials: Trials) -> Iterator[Way]:
    """To make an array in another dtype, at the user's line that gives it its own.

    That may be a line that forced the type of another one.
    """
    frames = [site.frame for site in finding.sites]
    dtypes = {dtype for leaf in finding.leaves for dtype in leaf.dtypes}
    # What JAX was given as it was made comes before what a line forced among others.
    leaves = sorted(finding.leaves, key=lambda leaf: bool(leaf.why.cause))
    roots = [leaf.why.root and leaf.why.root.users for leaf in leaves]
    pairs = [*zip(leaves, roots)]
    pairs += [(leaf, line) for leaf in leaves for line in {*roots} - {None}]
    sites = [site for site, _ in call.users]
    for number, (leaf, line) in enumerate(pairs):
        (old,) = leaf.dtypes
        for new in {call.wanted} if call.wanted else dtypes - {old}:
            text = leaf.argument.text if leaf.argument else ""
            key = keys(text)[-1] if text.endswith(("']", '"]')) else ""
            key = key or "x" * (kind(old) == "int")  # of numbers that are written out
            found = line and dtype_on_line(line, old, new, frames, key)
            if found and line:
                text = f"at {line} write {found[0]} in place of {found[1]}"
                trial = partial(_tried_in, sites, (old, new), trials)
                is_own = number < len(roots)  # else it is said only if it works
                yield Way(text, trial if is_own else lambda trial=trial: bool(trial()))


def _tried_in(sites: Sequence[Site], pair: tuple[DType, DType], trials: Trials) -> Outcome:
    """Whether one of some calls traces if its arguments have another dtype."""
    outcomes = [tried_as(site, [pair], trials) for site in sites]
    return any(outcomes) or (False if False in outcomes else None)


def _result(call: RefusedCall, result: Argument, trials: Trials) -> Iterator[Way]:
    """What to write where a function returns."""
    if result.source is None or call.body is None:
        return
    old, place = result.text, line_text(call.file, result.source.lineno)
    wanted = call.wanted
    if kind(wanted) == "bool":
        new, loss = f"{atom(result.source, old)} != 0", ""
    else:
        new = written(result, wanted)
        is_complex = kind(dtype_of(result.value)) == "complex"
        loss = "" if is_complex else "; its gradient is zero"
    text = f"at {place} write {new} in place of {old}{loss}"
    change, is_meant = partial(cast, dtype=wanted), lambda aval: aval.dtype == wanted
    yield Way(text, partial(trials.result, call.body, change, is_meant))
