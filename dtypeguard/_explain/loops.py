"""What to write where leaves of a carry come back in another type."""

import ast
import os
from collections.abc import Iterator, Sequence
from functools import partial

from .._leaves.dtypes import cast, kind
from .._leaves.internals import STATEFUL
from .._leaves.paths import parts
from .._leaves.rows import cast_back, cast_text, lost, return_as, type_text
from .._leaves.types import DType
from .._source.files import is_installed, line_text, package, short_path
from .._source.origin import Frame
from .._source.syntax import text_of
from .begin import begin_text, whole_floats
from .casts import cast_in_map
from .finding import Finding, RefusedLeaf
from .frames import ControlFlow
from .kinds import Kind
from .packages import give_as_returned, is_of_optimizer, is_of_package, is_own, wrapped
from .remedies import Remedy, Way, untried
from .rewritten import decorated, text_with
from .trials import Trials
from .written import Written, called, in_place, is_atom, on_line

_FEW = 3  # casts that are written out
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
        odd = [leaf for leaf in odd if leaf.is_average and is_users(leaf.why.begun)]
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
        yield Remedy([*_start_or_return(call, finding, leaf, outcome, trials)], [leaf])


def _start_or_return(
    call: ControlFlow,
    finding: Finding,
    leaf: RefusedLeaf,
    can_start: bool | None,
    trials: Trials,
) -> Iterator[Way]:
    """What to write for a leaf that no guard casts."""
    if leaf.is_reshaped:
        before, after = map(type_text, leaf.values)
        yield Way(f"return {leaf.path} as {before}", untried)
        yield Way(f"start it as {after}", lambda: can_start)
        return
    old, new = leaf.dtypes
    yield from _without_point(finding, leaf, trials)
    yield Way(begin_text(finding, [leaf], "start"), lambda: can_start)
    text = f"for {leaf.path} " * (can_start is False) + return_as(old, new)
    trial, place, line = untried, leaf.place, leaf.why.origin
    if place is not None:
        change = partial(cast, dtype=old)
        trial = partial(trials.returned, call.bodies["body"], place, change)
    if (written := _written(call, leaf)) and place is not None and line:
        back = cast_back(old, new, written.text, is_atom=is_atom(written.node))
        text = f"at {line} write {in_place(written.replaced(back))}{lost(new, old)}"
        if not written.is_result and finding.program:
            trial = partial(trials.cast, finding.program, [line], [place], None)
    yield Way(text, trial)


def _without_point(finding: Finding, leaf: RefusedLeaf, trials: Trials) -> Iterator[Way]:
    """To write 1 in place of 1.0 where that makes a float of an int."""
    line, program = leaf.why.origin and leaf.why.origin.users, finding.program
    kinds = tuple(map(kind, leaf.dtypes))
    if line and program and leaf.place is not None and kinds == ("int", "float"):
        for text in whole_floats(line):
            if outcome := trials.number(program, line, float(text), leaf.place):
                new = f"at {line} write {int(float(text))} in place of {text}"
                yield Way(new, partial(bool, outcome))


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
        return partial(untried)
    return partial(trials.guarded, call.bodies["body"], finding.program, places)


def _guard(
    call: ControlFlow, finding: Finding, castable: Sequence[RefusedLeaf], trials: Trials
) -> Iterator[Way]:
    """What to guard."""
    trial = _guard_trial(call, finding, castable, trials)
    if not is_installed(call.file):
        yield Way(_guarded(call), trial)
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

    def tried(to: DType, *, is_all: bool = False) -> bool | None:
        if finding.program is None:
            return None
        return trials.cast(finding.program, own, places, to, is_all=is_all)

    line, targets = castable[0].why.origin, list(dict.fromkeys(old for old, _ in pairs))
    texts, is_repeated = _casts_as_written(call, castable)
    if len(own) == 1 and line and (text := cast_in_map(line.users, castable[0].why.cause)):
        texts, is_repeated = [text], False
    to = targets[0] if is_repeated else None
    outcome = tried(to, is_all=is_repeated) if texts and is_direct else False
    if outcome or (outcome is None and not is_repeated):
        yield Way(" and ".join(texts), lambda: outcome)
        return
    outcome = False
    if len(targets) == 1:
        outcome = tried(targets[0], is_all=is_repeated)
    if outcome is not False:
        yield Way(f"cast {where}: {cast_text(targets[0])}{loss}", lambda: outcome)
    else:
        text = f"cast {where}: x.astype(p.dtype), where p is the leaf that came in{loss}"
        yield Way(text, partial(tried, None))


def _casts_as_written(
    call: ControlFlow, leaves: Sequence[RefusedLeaf]
) -> tuple[list[str], bool]:
    """The casts of leaves in the expressions that promote them; none if one is not known.

    Returns:
        What to write, and whether it casts all that an expression computes in its turns.
    """
    texts: dict[str, DType] = {}
    is_repeated = False
    for leaf in leaves:
        line, written = leaf.why.origin, _written(call, leaf)
        if line is None or written is None:
            return [], False
        old, new = leaf.dtypes
        text = f"at {line} write {written.cast(old)}{lost(new, old)}"
        is_repeated |= written.is_repeated
        if texts.setdefault(text, old) != old:
            return [], False
    is_one = len(texts) == 1 or not is_repeated
    return ([*texts], is_repeated) if is_one and len(texts) <= _FEW else ([], False)


def _written(call: ControlFlow, leaf: RefusedLeaf) -> Written | None:
    """The expression that promotes a leaf of a carry."""
    line, body = leaf.why.origin, call.bodies["body"]
    if line is None or leaf.place is None:
        return None
    inside = parts(body.carried.paths[leaf.place])
    return on_line(line, body.code, ["[0]"] * body.is_pair + inside)


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
    """To guard the body in the call, as the user has written it if that is short."""
    kind, code, written = call.kind, call.bodies["body"].code, call.written
    node = _body_of(written, kind)
    if isinstance(written, ast.Call) and node and called(written) == kind.name:
        text = _guard_step(kind, text_of(node, call.file))
        if len(text_of(written, call.file)) <= _LONG:
            return f"write {text_with(written, node, text, call.file)}"
    if isinstance(node, ast.Lambda):
        ellipsis = "(..., carry=1)" if kind.carry else ""
        where = line_text(call.file, node.lineno)
        return f"wrap the lambda at {where} in dtypeguard.guard_step{ellipsis}"
    name = getattr(node, "id", code.co_name if code else "")
    return f"write {kind.form.format(_guard_step(kind, _argument(name)))}"


def _guard_step(kind: Kind, function: str) -> str:
    carry = f", carry={kind.carry}" if kind.carry else ""
    return f"dtypeguard.guard_step({function}{carry})"


def _body_of(written: ast.AST | None, kind: Kind) -> ast.expr | None:
    """The body in a call of control flow; None if it is not written there."""
    if not isinstance(written, ast.Call):
        return None
    body = [each.value for each in written.keywords if each.arg == kind.keyword]
    before = written.args[: kind.position + 1]
    if len(before) > kind.position and not any(isinstance(x, ast.Starred) for x in before):
        body = [before[-1]]
    return body[0] if len(body) == 1 else None
