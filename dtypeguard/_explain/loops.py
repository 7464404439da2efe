"""What to write where leaves of a carry come back in another type."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from .._leaves.dtypes import cast, kind
from .._leaves.functions import parameters
from .._leaves.internals import STATEFUL
from .._leaves.paths import parts
from .._leaves.rows import cast_back, cast_text, lost, return_as, type_text
from .._leaves.types import DType
from .._lines.body import Body
from .._source.files import is_installed, package
from .begin import begin_text, whole_floats
from .casts import cast_in_map
from .finding import Finding, RefusedLeaf
from .frames import ControlFlow
from .guards import guard_given, guard_written
from .packages import give_as_returned, is_of_optimizer, is_of_package, is_own, wrapped
from .remedies import Remedy, Way, untried
from .reruns import Outcome
from .trials import Trials
from .written import Expression, in_place, is_atom, on_line

_FEW = 3  # casts that are written out


def loop_remedies(call: ControlFlow, finding: Finding, trials: Trials) -> Iterator[Remedy]:
    """What to write where leaves of a carry come back in another type."""
    leaves, loop = finding.leaves, _Loop(call, finding, trials)
    if call.is_of_jax or is_of_package(call, leaves):
        yield give_as_returned(call, finding, leaves, trials)
        return
    castable = [leaf for leaf in leaves if leaf.is_castable and not leaf.is_reshaped]
    others = [leaf for leaf in leaves if leaf not in castable]
    is_users = lambda line: line is not None and not is_installed(line.file)
    odd = [leaf for leaf in castable if leaf.is_odd]
    if is_installed(call.file):
        odd = [leaf for leaf in odd if is_users(leaf.why.begun)]
    for new in dict.fromkeys(leaf.dtypes[1] for leaf in odd):
        those = [leaf for leaf in odd if leaf.dtypes[1] == new]
        text = begin_text(finding, those, "begin")
        yield Remedy([Way(text, partial(loop.begins, those))], those)
    if is_of_optimizer(call, leaves):
        trial = loop.trial(trials.guarded, castable)
        yield wrapped(finding, trials, untried if is_installed(call.file) else trial)
    elif castable:
        ways = [*loop.guards(castable), *loop.casts(castable)]
        given = give_as_returned(call, finding, castable, trials) if not ways else None
        yield given or Remedy(ways, castable)
    can_start = loop.begins(others) if others else None
    for leaf in others:
        of = loop.reshaped if leaf.is_reshaped else loop.started_or_returned
        yield Remedy([*of(leaf, can_start)], [leaf])


class _Loop(NamedTuple):
    """A loop whose body returns leaves of the carry in another type."""

    call: ControlFlow
    finding: Finding
    trials: Trials

    @property
    def _body(self) -> Body:
        return self.call.bodies["body"]

    def trial(
        self, of: Callable[..., Outcome], leaves: Sequence[RefusedLeaf], *given: object
    ) -> Callable[[], Outcome]:
        """A trial of leaves of the carry, as far as their places are known."""
        places = [leaf.place for leaf in leaves]
        if self.finding.program is None or None in places:
            return untried
        return partial(of, self._body, self.finding.program, places, *given)

    def begins(self, leaves: Sequence[RefusedLeaf]) -> Outcome:
        """Whether leaves come back as they come back now if they begin so."""
        types = {leaf.place: leaf.values[1] for leaf in leaves if leaf.place is not None}
        if self.finding.program is None or len(types) < len(leaves):
            return None
        return self.trials.begun(self._body, self.finding.program, types)

    def reshaped(self, leaf: RefusedLeaf, can_start: Outcome) -> Iterator[Way]:
        """What to write for a leaf of another shape."""
        before, after = map(type_text, leaf.values)
        yield Way(f"return {leaf.path} as {before}", untried)
        yield Way(f"start it as {after}", lambda: can_start)

    def started_or_returned(self, leaf: RefusedLeaf, can_start: Outcome) -> Iterator[Way]:
        """What to write for a leaf of another kind, which no guard casts."""
        (old, new), line = leaf.dtypes, leaf.why.origin
        if line and (kind(old), kind(new)) == ("int", "float"):
            for number in whole_floats(line.users):  # 1.0 makes a float of an int
                value = float(number)
                if self.trial(self.trials.number, [leaf], line.users, value)():
                    text = f"at {line.users} write {int(value)} in place of {number}"
                    yield Way(text, lambda: True)
        yield Way(begin_text(self.finding, [leaf], "start"), lambda: can_start)
        text = f"for {leaf.path} " * (can_start is False) + return_as(old, new)
        trial = self.trial(self.trials.returned, [leaf], partial(cast, dtype=old))
        written = self._written(leaf)
        if line and written and not written.is_repeated:
            back = cast_back(old, new, written.text, is_atom=is_atom(written.node))
            text = f"at {line} write {in_place(written.replaced(back))}{lost(new, old)}"
            if not written.is_result:
                trial = self.trial(self.trials.cast, [leaf], [line], None)
        yield Way(text, trial)

    def guards(self, castable: Sequence[RefusedLeaf]) -> Iterator[Way]:
        """What to guard."""
        if not is_installed(self.call.file):
            text = guard_written(self.call)
            yield Way(text, self.trial(self.trials.guarded, castable))
        elif package(self.call.file) not in STATEFUL:  # a guard does not see what it keeps
            lines = (leaf.why.origin for leaf in castable if leaf.why.origin)
            if frame := next((line.outermost for line in lines if line.outermost), None):
                yield Way(guard_given(self.call, frame), untried)

    def casts(self, castable: Sequence[RefusedLeaf]) -> Iterator[Way]:
        """Where to cast instead: as is written, to one dtype, or to that of each leaf."""
        lines = [leaf.why.origin for leaf in castable if is_own(leaf.why.origin)]
        own = list(dict.fromkeys(line.users for line in lines if line))
        if not own:  # no line that the user could edit
            return
        loss = "".join(dict.fromkeys(lost(*leaf.dtypes[::-1]) for leaf in castable))
        where = f"at {' and '.join(map(str, own))}"
        texts, is_repeated = self._casts_as_written(castable)
        if in_map := len(own) == 1 and cast_in_map(own[0], castable[0].why.cause):
            texts, is_repeated = [in_map], False
        if any(line.called_from for line in lines if line):
            where = f"what {where[3:]} compute{'s' * (len(own) == 1)}"
            texts = []
        to, *others = dict.fromkeys(leaf.dtypes[0] for leaf in castable)
        each = self.trial(self.trials.cast, castable, own, None)
        one = self.trial(self.trials.cast, castable, own, to, is_repeated)
        model = "x.astype(p.dtype), where p is the leaf that came in"
        rows = (
            (texts, " and ".join(texts), (lambda: bool(one())) if is_repeated else each),
            (not others, f"cast {where}: {cast_text(to)}{loss}", one),
            (True, f"cast {where}: {model}{loss}", each),
        )
        for is_known, text, trial in rows:
            if is_known and (outcome := trial()) is not False:
                yield Way(text, lambda known=outcome: known)
                return

    def _casts_as_written(self, leaves: Sequence[RefusedLeaf]) -> tuple[list[str], bool]:
        """The casts of leaves in the expressions that promote them; none if one is unknown.

        Returns:
            What to write, and whether it casts all that an expression makes in its turns.
        """
        found = [(leaf, self._written(leaf)) for leaf in leaves]
        texts: dict[str, DType] = {}
        for leaf, written in found:
            (old, new), line = leaf.dtypes, leaf.why.origin
            is_alone = len(leaves) == 1
            write = written and written.cast(old, is_alone=is_alone)
            text = write and f"at {line} write {write}{lost(new, old)}"
            if text is None or texts.setdefault(text, old) != old:
                return [], False
        is_repeated = any(written.is_repeated for _, written in found if written)
        is_said = len(texts) <= (1 if is_repeated else _FEW)
        return [*texts] * is_said, is_repeated and is_said

    def _written(self, leaf: RefusedLeaf) -> Expression | None:
        """The expression that promotes a leaf of a carry."""
        line, body = leaf.why.origin, self._body
        if line is None or leaf.place is None:
            return None
        inside = parts(body.carried.paths[leaf.place])
        holders = map(type, body.carried.holders(leaf.place))
        classes = {x.__name__: [*parameters(x)] for x in holders}
        return on_line(line, body.code, ["[0]"] * body.is_pair + inside, classes)
