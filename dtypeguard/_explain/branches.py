"""What to write where branches return leaves in different types."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import jax.numpy as jnp
from jax import tree_util

from .._leaves.dtypes import cast, dtype_of, fits, kind, rank
from .._leaves.groups import grouped, of_holders
from .._leaves.paths import parts
from .._leaves.rows import array_text, cast_text, dtype_text, lost
from .._leaves.types import DType, Leaf
from .._lines.body import Body
from .._program.graph import open_jaxpr
from .._source.files import is_installed, package
from .begin import dtype_on_line
from .finding import Finding, RefusedLeaf
from .frames import ControlFlow
from .odd import is_averaged
from .packages import give, is_of_optimizer, is_own, wrapped
from .remedies import Remedy, Way, untried
from .reruns import Outcome
from .retyped import retyped, used_outside
from .trials import Trials
from .written import Expression, in_place, of_result, on_line

_FLOATS = "float", "complex"
_FEW = 3  # casts that are written out


def branch_remedies(
    call: ControlFlow, finding: Finding, trials: Trials
) -> Iterator[Remedy]:
    """What to write where branches return leaves in different types."""
    leaves = finding.leaves
    made = [leaf for leaf in leaves if leaf.is_made]
    # A branch may return a state as it was before, which `init` has made.
    if is_of_optimizer(call, [leaf for leaf in made if not leaf.unchanged] or made):
        yield wrapped(finding, trials, untried)
        return
    by_path = grouped(leaves, lambda leaf: leaf.path)
    for alike in grouped(by_path, _key):
        own = [leaf for of_path in alike for leaf in of_path]
        if not own[0].path.startswith("result"):  # they return nothing and work in place
            names = dict.fromkeys(leaf.branch for leaf in own if leaf.is_made)
            guarded = " and ".join(f"dtypeguard.guard_step({name})" for name in names)
            text = f"guard what you give to {package(call.file)}: {guarded}"
            yield Remedy([Way(text, untried)], own)
        elif len({leaf.values[0].shape for leaf in own[: len(alike[0])]}) > 1:
            yield Remedy([Way("return one shape from all branches", untried)], own)
        elif is_installed(call.file) and not call.has_users_branch:
            yield _in_package(call, finding, own, trials)
        else:
            yield Remedy([*_Casts(call, finding, alike, trials).ways()], own)


def _key(of_path: Sequence[RefusedLeaf]) -> tuple[object, ...]:
    """What results have in common for which one remedy is written."""
    return tuple((x.branch, str(x.dtypes[0]), x.is_made, x.literal) for x in of_path)


def _in_package(
    call: ControlFlow, finding: Finding, leaves: Sequence[RefusedLeaf], trials: Trials
) -> Remedy:
    """What to write where a package calls branches of its own."""
    one, other = leaves[:2]
    own = [leaf for leaf in (one, other) if leaf.why.cause and is_own(leaf.why.origin)]
    if not own:
        narrow, wide = sorted((one, other), key=_width)
        return give(call, finding, [(narrow.dtypes[0], wide.dtypes[0])], trials)
    leaf = min(own, key=lambda leaf: bool(leaf.unchanged))  # what was there is meant
    line, new = leaf.why.origin, (other if leaf is one else one).dtypes[0]
    loss = lost(leaf.dtypes[0], new)
    text = f"cast what {line and line.users} computes: {cast_text(new)}"
    if written := line and on_line(line.users):
        text = f"at {line and line.users} write {written.cast(new)}"
    trial = partial(_tried_at, call.bodies, leaf, new, trials)
    return Remedy([Way(f"{text}{loss}", trial)], leaves)


def _tried_at(
    bodies: Mapping[str, Body], leaf: RefusedLeaf, new: DType, trials: Trials
) -> Outcome:
    """Whether branches agree if the line that promotes what one returns casts."""
    line, body, place = leaf.why.origin, bodies[leaf.branch], leaf.place
    program = body.program(body.jaxprs[0]) if body.jaxprs else None
    if line is None or place is None or program is None:
        return None
    graph, (old,) = program.step, leaf.dtypes
    types = retyped(graph, dict.fromkeys(used_outside(graph, line.users, old), new))
    if types is None or types[graph.outputs[place]] != new:
        return None if types is None else False
    return trials.branches(bodies, [place], {leaf.branch: partial(cast, dtype=new)})


class _Casts:
    """Casts after which branches return some leaves in one dtype.

    Args:
        call: of the branches.
        finding: of the error.
        alike: what the first branch and those that differ return, for each of the leaves.
        trials: that try it.
    """

    def __init__(
        self,
        call: ControlFlow,
        finding: Finding,
        alike: Sequence[Sequence[RefusedLeaf]],
        trials: Trials,
    ):
        self._bodies, self._finding, self._trials = call.bodies, finding, trials
        self._alike, self._of_path = alike, alike[0]
        self._places = [x[0].place for x in alike if x[0].place is not None]

    def ways(self) -> Iterator[Way]:
        """The ways of writing it, what loses nothing first."""
        leaves, is_found = self._of_path, False
        made = [leaf for leaf in leaves if leaf.is_made]
        kept = [leaf for leaf in leaves if not leaf.is_made]
        promoted = [leaf for leaf in leaves if leaf.why.cause]
        # The value that was there before has the type that is meant.
        is_before = bool(made and kept)
        unchanged = [leaf for leaf in leaves if leaf.unchanged or not leaf.is_made]
        computed = [leaf for leaf in leaves if leaf not in unchanged]
        if unchanged and computed:
            yield from self._begun(computed[0], unchanged[0])
        targets = kept if is_before else sorted(leaves, key=self._losses)
        for new in dict.fromkeys(leaf.dtypes[0] for leaf in targets):
            others = [leaf for leaf in leaves if leaf.dtypes[0] != new]
            is_meant = is_before or len(promoted) != 1 or promoted[0] in others
            if is_meant and all(_may_be(leaf, new, is_before) for leaf in others):
                is_found = True
                yield self._cast(new)
        if is_before and not is_found:
            yield self._first_value(made[0], kept[0])
        elif not is_found:
            yield from self._of_one_kind(promoted)

    def _begun(self, made: RefusedLeaf, kept: RefusedLeaf) -> Iterator[Way]:
        """Another first dtype of what one branch keeps, and another one averages."""
        (old,), (new,), line = kept.dtypes, made.dtypes, kept.why.root
        body = self._bodies[made.branch]
        program = body.program(body.jaxprs[0]) if body.jaxprs else None
        if not (program and line and is_own(line)) or made.place is None:
            return
        if is_averaged(program.step, made.place, old):
            frames = [site.frame for site in self._finding.sites]
            found = dtype_on_line(line.users, old, new, frames)
            if found is None:
                return
            kept_ones = [x for y in self._alike for x in y if x.branch == kept.branch]
            paths = [x.variable or x.path for x in kept_ones]
            path = of_holders(paths) if len(paths) > 1 else paths[0]
            text = f"at {line.users} begin {path} as {new}: "
            text += f"write {found[0]} in place of {found[1]}"
            change = {kept.branch: partial(cast, dtype=new)}
            of = partial(self._trials.branches, self._bodies, self._places)
            yield Way(text, partial(of, change))

    def _losses(self, to: RefusedLeaf) -> int:
        """How many of the branches lose something if they return the dtype of one."""
        pairs = [(leaf.dtypes[0], to.dtypes[0]) for leaf in self._of_path]
        return sum(jnp.promote_types(*pair) != pair[1] for pair in pairs)

    def _cast(self, new: DType) -> Way:
        """To cast what all branches return that return another dtype."""
        texts, changes, written = [], {}, []
        for name, body in self._bodies.items():
            # Those that are not listed are like the first.
            known = [{x.branch: x for x in of_path} for of_path in self._alike]
            leaves = [x.get(name) or y[0] for x, y in zip(known, self._alike)]
            if leaves[0].dtypes[0] != new:
                text, changes[name] = _cast(body, leaves, new)
                texts.append(f"{name} return {text}")
                written += [(x.written, x.literal) for x in leaves]
        text = f"let {' and '.join(texts)}"
        numbers = [(x, number) for x, number in written if x and number is not None]
        if len(numbers) == len(written):
            text = _numbers(numbers, new)
        return Way(
            text, partial(self._trials.branches, self._bodies, self._places, changes)
        )

    def _first_value(self, made: RefusedLeaf, kept: RefusedLeaf) -> Way:
        """Another dtype for what one branch keeps, and another one computes."""
        (old,), (new,) = kept.dtypes, made.dtypes
        text = array_text(new) + lost(old, new)
        of = partial(self._trials.branches, self._bodies, self._places)
        if not kept.variable:
            own = [x for each in self._alike for x in each if x.branch == kept.branch]
            text, change = _cast(self._bodies[kept.branch], own, new)
            return Way(
                f"let {kept.branch} return {text}", partial(of, {kept.branch: change})
            )
        text = f"let the first value of {kept.variable} be {new}: {text}"
        operands = [_operand(self._bodies[kept.branch], place) for place in self._places]
        types = {operand: new for operand in operands if operand is not None}
        is_known = len(types) == len(self._places)
        return Way(text, partial(of, {}, types) if is_known else untried)

    def _of_one_kind(self, promoted: Sequence[RefusedLeaf]) -> Iterator[Way]:
        """What to write where a promotion to another kind is not to be undone by a cast."""
        frames = [site.frame for site in self._finding.sites]
        for leaf, to in (self._of_path[:2], self._of_path[1::-1]):
            line, old, new = leaf.why.root, leaf.dtypes[0], to.dtypes[0]
            if leaf in promoted and line and is_own(line):
                if found := dtype_on_line(line.users, old, new, frames):
                    text = f"at {line.users} write {found[0]} in place of {found[1]}"
                    yield Way(text, untried)
            elif leaf not in promoted and kind(new) in _FLOATS:
                yield self._cast(new)


def _may_be(leaf: RefusedLeaf, new: DType, is_before: bool) -> bool:
    """Whether a cast of a leaf may be said; of a float to what was before, only to one."""
    (old,) = leaf.dtypes
    is_exact = kind(old) not in _FLOATS
    return fits(old, new) or (kind(new) in _FLOATS and (is_exact or not is_before))


def _width(leaf: RefusedLeaf) -> tuple[int, int]:
    """By which the wider of two types comes last: its kind, then its size."""
    return rank(leaf.dtypes[0]), leaf.dtypes[0].itemsize


def _operand(body: Body, place: int) -> int | None:
    """The operand that a branch returns as it is, by its place; None if it is none."""
    jaxpr = open_jaxpr(body.jaxprs[0])
    count = len(tree_util.tree_leaves(body.inputs))
    operands = jaxpr.invars[len(jaxpr.invars) - count :]
    result = jaxpr.outvars[place]
    return next((n for n, operand in enumerate(operands) if operand is result), None)


def _cast(
    body: Body, leaves: Sequence[RefusedLeaf], new: DType
) -> tuple[str, Callable[[Leaf], Leaf]]:
    """A cast of what one branch returns, with what that loses, and what it does."""
    (old,), literal = leaves[0].dtypes, leaves[0].literal
    if literal is None:
        text = _cast_as_written(body, leaves, new) or _cast_of_tree(body, leaves, new)
        text = text or cast_text(new)
        return f"{text}{lost(old, new)}", partial(cast, dtype=new)
    text = f"{_number(literal, old, new)} in place of {literal!r}"
    return text, lambda _: jnp.asarray(literal, new)


def _number(literal: float, old: DType, new: DType) -> str:
    """How to write a number of another dtype: with a point, if that does."""
    is_float = kind(old) == "int" and kind(new) == "float"
    value = float(literal)
    is_enough = is_float and dtype_of(value) == new
    return repr(value) if is_enough else array_text(new, repr(literal))


def _numbers(numbers: Sequence[tuple[Expression, float]], new: DType) -> str:
    """To write numbers of another dtype, each at its line."""
    texts: dict[str, list[str]] = {}
    for written, number in dict.fromkeys(numbers):
        text = _number(number, dtype_of(number), new)
        is_alone = len(numbers) == 1
        write = in_place(written.replaced(text, is_alone=is_alone))
        texts.setdefault(str(written.line), []).append(write)
    return " and ".join(f"at {x} write {' and '.join(texts[x])}" for x in texts)


def _cast_of_tree(body: Body, leaves: Sequence[RefusedLeaf], new: DType) -> str:
    """A cast of all leaves of a dtype in what a branch returns; empty if one is to stay."""
    (old,), whole = leaves[0].dtypes, of_result(body.code, [])
    results = [open_jaxpr(jaxpr).outvars for jaxpr in body.jaxprs[:1]]
    count = sum(dtype_of(x.aval) == old for each in results for x in each)
    if not whole or count != len(leaves) or not parts(leaves[0].path)[1:]:
        return ""
    is_it = f'getattr(x, "dtype", None) == {dtype_text(old)}'
    return f"jax.tree.map(lambda x: {cast_text(new)} if {is_it} else x, {whole.text})"


def _cast_as_written(body: Body, leaves: Sequence[RefusedLeaf], new: DType) -> str:
    """Casts of the user's expressions of some leaves; empty if one is not known."""
    paths = [parts(leaf.path) for leaf in leaves]
    found = [of_result(body.code, x[1:]) if x[0] == "result" else None for x in paths]
    results = [len(open_jaxpr(jaxpr).outvars) for jaxpr in body.jaxprs[:1]]
    texts = dict.fromkeys(
        x.cast(new, is_alone=len(leaves) == 1) if path[1:] else cast_text(new, x.operand)
        for x, path in zip(found, paths)
        if x and (not x.is_repeated or results == [len(leaves)])
    )
    is_said = len(texts) == len({(x.node if x else None) for x in found}) <= _FEW
    return " and ".join(texts) if is_said and None not in found else ""
