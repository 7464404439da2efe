"""One call of a guarded step, and calls like it, which need nothing but the step itself."""

import functools
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax import tree_util
from jax.core import Tracer

from .._carry.carry import Carry
from .._carry.items import ReturnedCarry
from .._carry.modules import closed, objects, opened, put_contents
from .._carry.split import Snapshot
from .._leaves.compat import HAS_X64_SCOPE, PromotionError, set_x64, x64_enabled
from .._leaves.dtypes import canonical, dtype_of, is_weak, is_wide
from .._leaves.errors import DtypeDriftError, first_line, more
from .._leaves.internals import LOOPS_OF_EQUINOX, LOOPS_OF_JAX
from .._leaves.types import Args, Aval, Kwargs, Leaf, PyTree
from .._source.files import is_users
from .settle import Output, Settled, report_drift, settle_carried, settle_held

_Arguments = tuple[Args, Kwargs]


OVER_TYPES = (TypeError, PromotionError)


class GuardedCall:
    """One call of a guarded step, which is a `_GuardedStep`."""

    def __init__(self, guarded: Any, args: Args, kwargs: Kwargs):
        self.guarded = guarded
        self.args = args
        self.kwargs = kwargs
        self.carry = guarded.carry
        values = self.carry.take(args, kwargs)
        self.carried = [Snapshot(closed(value)) for value in values]
        self.held = self.carry.held(args, kwargs)
        self.is_as_bare = False

    def run(self) -> PyTree:
        """Makes the call; returns the result of the step with its carry settled."""
        try:
            return self._run()
        except BaseException:
            for held in self.held:
                held.restore_types()
            raise

    def _run(self) -> PyTree:
        """Makes one attempt, and maybe another if that raises over types."""
        data = (leaf for each in self.carried for leaf in each.data())
        if self.guarded.is_jitted and any(map(_is_weak_and_known, data)):
            try:
                return self._attempt(*self._strongly_typed())
            except DtypeDriftError:
                raise
            except OVER_TYPES:  # with strict promotion a weak number alone promotes
                pass
        try:
            return self._attempt(*self._with(self.carried))
        except OVER_TYPES as error:
            done, result = self.again(error)
            if not done:
                raise
            return result

    def again(self, error: Exception) -> tuple[bool, PyTree]:
        """Maybe makes an attempt with x64 off: whether it worked, and the result."""
        is_drift = isinstance(error, DtypeDriftError)
        if is_drift or not (HAS_X64_SCOPE and x64_enabled()):
            return False, None
        trees = [each.leaves for each in self.carried], [each.before for each in self.held]
        leaves = tree_util.tree_leaves((trees, closed((self.args, self.kwargs))))
        if any(is_wide(leaf) and not is_weak(leaf) for leaf in leaves):
            return False, None
        narrow = lambda leaf: canonical(leaf) if is_weak(leaf) and is_wide(leaf) else leaf
        try:
            with set_x64(False):
                for held in self.held:
                    put_contents(held.node, tree_util.tree_map(narrow, held.before))
                carried = [each.map(narrow) for each in self.carried]
                result = self._attempt(*self._with(carried))
        except Exception:  # the first error tells the user more than any second one
            return False, None
        self.guarded.warn_once(
            f"{self.carry.step} failed with x64 on and was run with it off: "
            f"{first_line(error)}"
        )
        self.is_as_bare = False
        return True, result

    def _strongly_typed(self) -> _Arguments:
        """The arguments, with a weak leaf made strong if it comes back so in its dtype.

        A jitted step then compiles once for them. A leaf of an outer trace stays weak,
        because `lax.scan` finds its type by itself.
        """
        step: Any = self.guarded.step
        # A bound method hands on the attributes of its function, which takes `self`.
        is_method = isinstance(step, types.MethodType)
        bound = [getattr(step, "__self__", None)] if is_method else []
        eval_shape: Any = getattr(step, "eval_shape", None)
        shapes = eval_shape(*bound, *self.args, **self.kwargs)
        found, _ = self._find(shapes)
        carried = list(self.carried)
        for number, tree in zip(found.numbers, found.values):
            leaves, treedef = tree_util.tree_flatten(closed(tree))
            if treedef == carried[number].treedef:
                carried[number] = carried[number].map(_typed_like, leaves)
        return self._with(carried)

    def _with(self, carried: Sequence[Snapshot]) -> _Arguments:
        return self.carry.put(self.args, self.kwargs, _values(carried))

    def _attempt(self, args: Args, kwargs: Kwargs) -> PyTree:
        return self.settled(self.guarded.step(*args, **kwargs))

    def settled(self, result: PyTree) -> PyTree:
        """What the step returned, with its carry settled."""
        try:
            return self._settled(result)
        except TypeError as error:
            carry, rows = self.carry, getattr(error, "rows", ())
            remedy = carry.self_remedy(self.args, result)
            is_reshaped = any("return it in shape" in row.remedy for row in rows)
            if not (carry.is_default and (is_reshaped or remedy)):
                raise
            remedy = remedy or f"{carry.owner}(..., carry=NAME)"
            message = (
                f"{error}\nA guard takes the first argument, {carry.labels[0]}, for the "
                f"carry. To name another: {remedy}."
            )
            raise (DtypeDriftError(message, rows) if rows else TypeError(message)) from None

    def _find(self, result: PyTree) -> tuple[ReturnedCarry, tuple[PyTree, ...]]:
        """Locates the carry in a result; also returns the carries of the call."""
        values = _values(self.carried)
        return self.carry.find(result, values, bool(self.held)), values

    def _settled(self, result: PyTree) -> PyTree:
        found, values = self._find(result)
        carry, policy = self.carry, self.guarded.policy
        parts = [self._part(label) for label in carry.labels]
        settled = [settle_held(self._part(x.label), x, x.node, policy) for x in self.held]
        new = []
        for number, tree in zip(found.numbers, found.values):
            part, given = parts[number], self.carried[number]
            new.append(settle_carried(part, closed(tree), given, policy))
            settled += self._settled_in_place(tree, carry.labels[number])
        report_drift([*settled, *new], parts[0], policy, self.guarded.warn_once)
        is_cast = any(each.drifted for each in new)
        question = carry.ambiguity(found, values[0]) if is_cast else ""
        # The first item of what a loop's body returns is the carry.
        if question and not self._loop:
            self.guarded.warn_once(question + more("guard-a-step"))
        settled_result = found.put([opened(each.tree) for each in new])
        self.is_as_bare = settled_result is result and not self.held
        return settled_result

    def _settled_in_place(self, tree: PyTree, label: str) -> Iterator[Settled]:
        """Settles an object that is returned in place of one that came in."""
        before = {held.label: held for held in self.held}
        for path, node in objects(tree).items():
            held = before.get(label + path)
            if held is not None and held.node is not node:
                yield settle_held(self._part(held.label), held, node, self.guarded.policy)

    def _part(self, label: str) -> Output:
        # Unlike JAX's, Equinox's loops do not trace their body again if a weakly typed leaf
        # comes back in another type. (Equinox 0.13.8)
        is_fixed = self._loop == LOOPS_OF_EQUINOX
        return Output(label, self.carry.step, self.carry.owner, starts_weak=not is_fixed)

    @functools.cached_property
    def _loop(self) -> str:
        """Whose loop called the step, or a lambda around it; empty if none did."""
        leaves = (leaf for each in self.carried for leaf in each.leaves)
        is_traced = any(isinstance(leaf, Tracer) for leaf in leaves)  # else it is no body
        frame, others, loop = sys._getframe() if is_traced else None, 0, ""
        while frame is not None and others < 2 and loop != LOOPS_OF_EQUINOX:
            module = frame.f_globals.get("__name__", "")
            # Equinox may have called a loop of JAX.
            loops = (LOOPS_OF_EQUINOX, LOOPS_OF_JAX)
            loop = next(filter(module.startswith, loops), loop)
            if is_users(frame.f_code.co_filename) and not module.startswith("equinox."):
                others += 2 if loop else 1
            frame = frame.f_back
        return loop


def _values(carried: Sequence[Snapshot]) -> tuple[PyTree, ...]:
    return tuple(opened(each.copy()) for each in carried)


def _typed_like(leaf: Leaf, returned: Leaf) -> Leaf:
    """Makes a weak leaf strong if what comes back for it is, in the same dtype."""
    is_same = dtype_of(leaf) == dtype_of(returned) and not is_weak(returned)
    return canonical(leaf) if is_same and _is_weak_and_known(leaf) else leaf


def _is_weak_and_known(leaf: Leaf) -> bool:
    # A Python bool promotes like an array, and modules branch on theirs.
    return is_weak(leaf) and not isinstance(leaf, (bool, Tracer))


_Jitted = type(jax.jit(lambda: None))
_AVAL = operator.attrgetter("aval")
_Pick = Callable[[list[Leaf]], Iterable[Leaf]]
_Flatten = Callable[[PyTree], list[Leaf]]


class Repeat(NamedTuple):
    """A recorded call whose carry kept its types; calls like it skip the guard.

    In such a call nothing is cast and nothing changes in place: `jit` hands the step copies
    of all containers. Where the carry comes back in its types again, the result of the bare
    step is that of the guarded one.
    """

    aval: Callable[[Leaf], Aval]  # reads the abstract value of a leaf
    leaves: _Flatten  # of arguments of the same structure; else raises
    carried: _Pick  # those of them that are carried
    results: _Flatten  # leaves of a result of the same structure; else raises
    returned: _Pick  # those of them that come back for the carry
    avals: list[Aval]  # of the leaves that are carried; none of them is weakly typed

    def carry_of(self, args: Args, kwargs: Kwargs) -> list[Aval] | None:
        """The abstract values of the carry in another call; None if it needs a guard."""
        try:
            avals = [*map(self.aval, self.carried(self.leaves((args, kwargs))))]
            is_like = avals == self.avals or not any(map(_is_weak, avals))
        except (AttributeError, TypeError, ValueError):  # another tree, or no JAX arrays
            return None
        # Without jit, a step could change the caller's containers.
        return avals if is_like and not jax.config.jax_disable_jit else None  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import

    def is_kept(self, avals: list[Aval], result: PyTree) -> bool:
        """Whether a carry comes back in its types."""
        try:
            return [*map(self.aval, self.returned(self.results(result)))] == avals
        except (AttributeError, TypeError, ValueError):
            return False


def repeat_of(
    step: object, carry: Carry, args: Args, kwargs: Kwargs, result: PyTree
) -> Repeat | None:
    """Records a call in which nothing was cast; None if its like have to look further."""
    if not isinstance(step, _Jitted) or carry.bound is not None:
        return None
    leaves, treedef = tree_util.tree_flatten((args, kwargs))
    made, made_def = tree_util.tree_flatten(result)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return None
    try:  # with marks for arrays, some nodes cannot be built
        marks, made_marks = [[object() for _ in each] for each in (leaves, made)]
        given = carry.take(*tree_util.tree_unflatten(treedef, marks))
        found = carry.find(tree_util.tree_unflatten(made_def, made_marks), given).values
        carried, returned = _places(given, marks), _places(found, made_marks)
    except Exception:
        return None
    are_arrays = all(isinstance(leaves[i], jax.Array) for i in carried)
    if not are_arrays or len(carried) != len(returned):
        return None
    arrays = [leaves[i] for i in carried]
    avals = [*map(_AVAL, arrays)]
    if any(map(_is_weak, avals)):
        return None
    pick, pick_returned = map(_pick, (carried, returned))
    flatten, flatten_result = treedef.flatten_up_to, made_def.flatten_up_to
    return Repeat(_reader(arrays), flatten, pick, flatten_result, pick_returned, avals)


def _places(tree: PyTree, marks: Sequence[object]) -> list[int]:
    """Which marks the leaves of a tree are; a KeyError if one is none of them."""
    places = {id(mark): place for place, mark in enumerate(marks)}
    return [places[id(leaf)] for leaf in tree_util.tree_leaves(tree)]


def _reader(arrays: Sequence[Leaf]) -> Callable[[Leaf], Aval]:
    """Reads abstract values: of arrays of one type three times as fast as `_AVAL`."""
    types = {*map(type, arrays)}
    getter = getattr(types.pop(), "aval", None) if len(types) == 1 else None
    return getattr(getter, "fget", _AVAL)  # that of a property


def _pick(numbers: Sequence[int]) -> _Pick:
    """A function that picks the items of a list with these numbers; quick for a range."""
    first, last = (numbers[0], numbers[-1] + 1) if numbers else (0, 0)
    if [*numbers] == [*range(first, last)]:
        return operator.itemgetter(slice(first, last))
    return operator.itemgetter(*numbers)


def _is_weak(aval: Aval) -> bool:
    return getattr(aval, "weak_type", False)
