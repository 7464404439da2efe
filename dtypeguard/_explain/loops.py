"""What to write where leaves of a carry come back in another type."""

import ast
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial

from .._leaves.dtypes import kind
from .._leaves.internals import STATEFUL
from .._leaves.rows import cast_text, lost, return_as, type_text
from .._source.files import is_installed, line_text, package, short_path
from .._source.origin import Frame
from .._source.syntax import text_of
from .begin import begin_text, whole_floats
from .casts import cast_in_map, cast_on_line
from .finding import Finding, RefusedLeaf
from .frames import ControlFlow
from .packages import give_as_returned, is_of_optimizer, is_of_package, is_own, wrapped
from .remedies import Remedy, Way
from .rewritten import decorated
from .trials import Trials

_LONG = 100  # a call with more characters is not written out


def loop_remedies(call: ControlFlow, finding: Finding, trials: Trials) -> Iterator[Remedy]:
    """What to write where leaves of a carry come back in another type."""
    leaves = finding.leaves
    if call.is_of_jax or is_of_package(call, leaves):
        yield give_as_returned(call, finding, leaves, trials)
        return
    castable = [leaf for leaf in leaves if leaf.is_castable and not leaf.is_reshaped]
    is_wrapped = is_of_optimizer(call, leaves)
    is_users = lambda line: line is not None and not is_installed(line.file)
    odd = [leaf for leaf in castable if leaf.is_odd]
    if is_installed(call.file):
        odd = [leaf for leaf in odd if is_users(leaf.why.begun)]
    yield from _begin(call, finding, odd, trials)
    if is_wrapped:
        yield wrapped(finding, trials, _guard_trial(call, finding, castable, trials))
    elif castable:
        ways = [*_guard(call, finding, castable, trials)]
        ways += _casts(call, finding, castable, trials)
        yield (
            Remedy(ways, castable)
            if ways
            else give_as_returned(call, finding, castable, trials)
        )
    others = [leaf for leaf in leaves if leaf not in castable]
    can_start = partial(_begins, call, finding, others, trials)
    outcome = can_start() if others else None
    for leaf in others:
        yield Remedy([*_start_or_return(finding, leaf, outcome, trials)], [leaf])


def _start_or_return(
    finding: Finding, leaf: RefusedLeaf, can_start: bool | None, trials: Trials
) -> Iterator[Way]:
    """What to write for a leaf that no guard casts."""
    if leaf.is_reshaped:
        before, after = map(type_text, leaf.values)
        yield Way(f"return {leaf.path} as {before}")
        yield Way(f"start it as {after}", lambda: can_start)
        return
    old, new = leaf.dtypes
    cast = return_as(old, new)
    yield from _without_point(finding, leaf, trials)
    yield Way(begin_text(finding, [leaf], "start"), lambda: can_start)
    yield Way(cast if can_start is not False else f"for {leaf.path} {cast}")


def _without_point(finding: Finding, leaf: RefusedLeaf, trials: Trials) -> Iterator[Way]:
    """To write 1 in place of 1.0 where that makes a float of an int."""
    line, program = leaf.why.origin and leaf.why.origin.users, finding.program
    kinds = tuple(map(kind, leaf.dtypes))
    if line and program and leaf.place is not None and kinds == ("int", "float"):
        for text in whole_floats(line):
            if trials.number(program, line, float(text), leaf.place):
                yield Way(f"at {line} write {int(float(text))} in place of {text}")


def _begins(
    call: ControlFlow, finding: Finding, leaves: Sequence[RefusedLeaf], trials: Trials
) -> bool | None:
    """Whether leaves come back as they come back now if they begin so."""
    types = {leaf.place: leaf.values[1] for leaf in leaves if leaf.place is not None}
    if finding.program is None or len(types) < len(leaves):
        return None
    return trials.begun(call.bodies["body"], finding.program, types)


def _begin(
    call: ControlFlow, finding: Finding, leaves: Sequence[RefusedLeaf], trials: Trials
) -> Iterator[Remedy]:
    """What to write where leaves begin in another dtype than the program has."""
    for new in dict.fromkeys(leaf.dtypes[1] for leaf in leaves):
        those = [leaf for leaf in leaves if leaf.dtypes[1] == new]
        text = begin_text(finding, those, "begin")
        yield Remedy([Way(text, partial(_begins, call, finding, those, trials))], those)


def _guard_trial(
    call: ControlFlow, finding: Finding, castable: Sequence[RefusedLeaf], trials: Trials
) -> partial[bool | None]:
    places = [leaf.place for leaf in castable if leaf.place is not None]
    if finding.program is None or is_installed(call.file):
        return partial(lambda: None)
    return partial(trials.guarded, call.bodies["body"], finding.program, places)


def _guard(
    call: ControlFlow, finding: Finding, castable: Sequence[RefusedLeaf], trials: Trials
) -> Iterator[Way]:
    """What to guard."""
    trial = _guard_trial(call, finding, castable, trials)
    if not is_installed(call.file):
        yield Way(f"write {_guarded(call)}", trial)
    elif package(call.file) not in STATEFUL:  # a guard does not see what it keeps
        lines = (leaf.why.origin for leaf in castable if leaf.why.origin)
        if frame := next((line.outermost for line in lines if line.outermost), None):
            yield Way(_guard_of(call, frame), trial)


def _casts(
    call: ControlFlow, finding: Finding, castable: Sequence[RefusedLeaf], trials: Trials
) -> Iterator[Way]:
    """Where to cast instead of guarding: to one dtype, or to that of each leaf."""
    lines = [leaf.why.origin for leaf in castable if is_own(leaf.why.origin)]
    own = list(dict.fromkeys(line.users for line in lines if line))
    if not own:  # no line that the user could edit
        return
    pairs = [leaf.dtypes for leaf in castable]
    loss = "".join(dict.fromkeys(lost(new, old) for old, new in pairs))
    named, is_direct = (
        " and ".join(map(str, own)),
        not any(line.called_from for line in lines if line),
    )
    where = f"at {named}" if is_direct else f"what {named} compute{'s' * (len(own) == 1)}"
    places = [leaf.place for leaf in castable if leaf.place is not None]

    def tried(to: object) -> bool | None:
        if finding.program is None:
            return None
        return trials.cast(finding.program, own, places, to)

    first = castable[0]
    written = _cast_as_written(call, first) if len(castable) == 1 else ""
    if len(own) == 1 and not written and first.why.origin:
        written = cast_in_map(first.why.origin.users, first.why.cause)
    if written and is_direct and tried(None) is not False:
        yield Way(written, partial(tried, None))
        return
    targets = list(dict.fromkeys(old for old, _ in pairs))
    outcome = tried(targets[0]) if len(targets) == 1 else False
    if outcome is not False:
        yield Way(f"cast {where}: {cast_text(targets[0])}{loss}", lambda: outcome)
    else:
        text = f"cast {where}: x.astype(p.dtype), where p is the leaf that came in{loss}"
        yield Way(text, partial(tried, None))


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


def _guard_of(call: ControlFlow, frame: Frame) -> str:
    """What to write to guard a function that is given to a package."""
    owner, _, name = frame.function.rpartition(".")
    owner = owner.rpartition(".")[2]
    is_method = owner.isidentifier()
    position = call.carry
    if short_path(call.file).startswith(os.path.join("flax", "core")):
        position = int(not is_method)  # Flax Linen gives it the module first
    carry = f"carry={position}" if position else ""
    decorator = f"@dtypeguard.guard_step{carry and f'({carry})'}"
    given = f"guard what you give to {package(call.file)}: "
    if is_method:
        return f"{given}{decorator} on {owner}.{name}"
    if line := decorated(frame.file, frame.line, name):
        where = line_text(frame.file, line)
        return f"write {decorator} directly above def {name} at {where}"
    inside = ", ".join(filter(None, [_argument(name), carry]))
    return f"{given}dtypeguard.guard_step({inside})"


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
