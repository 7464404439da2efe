"""What to write where JAX refuses the arguments of a call, or a function's result."""

from collections.abc import Iterator, Sequence
from functools import partial

from .._leaves.compat import x64_enabled
from .._leaves.dtypes import dtype_of, kind
from .._leaves.rows import cast_text
from .._lines.sites import Argument, Site, arguments
from .._source.files import is_installed, line_text, package
from .casts import ArgumentCast, atom, cast_of_users, casts_to_meet, sentence, written
from .finding import Finding, RefusedCall, RefusedLeaf
from .packages import flag, nothing, tried_as, wrapped
from .remedies import Remedy, Way
from .trials import Outcome, Trials


def call_remedies(call: RefusedCall, finding: Finding, trials: Trials) -> Iterator[Remedy]:
    """What to write for what JAX refuses; first what would mend the cause."""
    leaves = finding.leaves
    named = [leaf.argument for leaf in leaves if leaf.argument]
    if call.is_of_others:
        return
    if call.is_result:
        yield Remedy([Way(_result(call, named[0]))], leaves)
    elif not is_installed(call.file):
        casts = [[ArgumentCast(argument, call.wanted) for argument in named]]
        if call.wanted is None:
            forced = [leaf.argument for leaf in leaves if leaf.argument and leaf.why.cause]
            casts = casts_to_meet(named, forced)
        for way in casts:
            yield Remedy([_cast(way, finding.sites[-1], trials)], leaves)
    else:
        if call.is_update:
            yield wrapped(finding, trials, lambda: None)
        yield _given(call, finding, named, trials)


def _cast(casts: Sequence[ArgumentCast], site: Site, trials: Trials) -> Way:
    """What to cast in a call of the user's."""
    trial = partial(_tried, casts, site, trials)
    return Way(sentence(casts, site.file, site.node), trial)


def _tried(casts: Sequence[ArgumentCast], site: Site, trials: Trials) -> Outcome:
    changes = {
        cast.argument.source: written(cast.argument, cast.argument.text, cast.dtype)
        for cast in casts
        if cast.argument.source
    }
    known = next(arguments(site), ())
    return trials.expression(site, changes, known=known) if changes else None


def _given(
    call: RefusedCall, finding: Finding, refused: Sequence[Argument], trials: Trials
) -> Remedy:
    """What to give to a package, in the user's own call of it."""
    ways: list[Way] = []
    types = sorted({dtype_of(x.value) for x in refused}, key=lambda x: x.itemsize)
    for site, given in call.users:
        if cast := cast_of_users(refused, given, call.wanted):
            ways.append(_cast([cast], site, trials))
        own = {dtype_of(x.value) for x in given}
        targets = [call.wanted] if call.wanted else [types[-1], types[0]]
        name = package(call.file)
        for to in targets:
            pairs = [(old, to) for old in types if old in own and old != to]
            if pairs and kind(to):
                what = f"its arrays at {line_text(site.file, site.line)}"
                text = f"give {name} {what} as {to}: {cast_text(to)}"
                ways.append(Way(text, partial(tried_as, site, pairs, trials)))
        ways += flag(site, trials) if x64_enabled() else ()
    return Remedy(ways, finding.leaves, True, nothing(finding))


def _result(call: RefusedCall, result: Argument) -> str:
    """What to write where a function returns."""
    if result.source is None:
        return ""
    old, place = result.text, line_text(call.file, result.source.lineno)
    if kind(call.wanted) == "bool":
        new, loss = f"{atom(result.source, old)} != 0", ""
    else:
        new = written(result, old, call.wanted)
        is_complex = kind(dtype_of(result.value)) == "complex"
        loss = "" if is_complex else "; its gradient is zero"
    return f"at {place} write {new} in place of {old}{loss}"
