"""One call of a guarded step."""

import functools
import itertools
import operator
import types
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
from jax import tree_util
from jax.core import Tracer

from .._carry.carry import Carry
from .._carry.items import ReturnedCarry
from .._carry.modules import close_objects, objects_by_path, open_objects, put_contents
from .._carry.split import ObjectSnapshot, Snapshot
from .._leaves.compat import HAS_X64_SCOPE, set_x64, x64_enabled
from .._leaves.dtypes import canonical, dtype_of, has_64_bits, is_weak
from .._leaves.errors import DtypeDriftError, more
from .._leaves.internals import LOOPS_OF_EQUINOX
from .._leaves.types import (
    Args,
    Aval,
    Function,
    Key,
    Kwargs,
    Leaf,
    NNXObject,
    PyTree,
    PyTreeDef,
    Step,
)
from .._source.warn import WarnOnce
from .calling_loop import calling_loop
from .policy import Policy
from .second_attempt import ERRORS_OF_TYPES, SecondAttempt, run_or_try_again
from .settle import Output, report_drift, settle_carried, settle_object

_Jitted = type(jax.jit(lambda: None))

# Mapped in C: a comprehension would take twice as long, and a jitted call of ten arrays
# takes no more than ten microseconds.
_type_of_array = operator.attrgetter("aval")
_weakness = operator.attrgetter("weak_type")


class StepGuard:
    """A step, and how it is guarded."""

    def __init__(self, step: Step, carry: Carry, policy: Policy):
        self.step = step
        self.carry = carry
        self.policy = policy
        self.warn_once = WarnOnce()
        # Of the last call of a jitted step in which there was nothing to cast.
        self.stable_carry: _StableCarry | None = None

    def call(self, args: Args, kwargs: Kwargs) -> PyTree:
        """Returns what the step returns, with its carry settled.

        A jitted step gets copies of all containers and changes nothing in place. If its
        carry comes back in the types with which it came in, there is nothing else to do.
        """
        stable = self.stable_carry
        types_before = None
        # Without jit, a step could change the caller's containers.
        if stable is not None and not jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import
            carries = [place.take(args, kwargs) for place in self.carry.places]
            types_before = stable.types_of(carries)
        if stable is None or types_before is None or any(map(_weakness, types_before)):
            return GuardedCall(self, args, kwargs).run()
        try:
            result = self.step(*args, **kwargs)
        except ERRORS_OF_TYPES:
            if not x64_enabled():
                raise
            return GuardedCall(self, args, kwargs).run()  # maybe with x64 off
        # Most often these are the same objects, and equal at once.
        if stable.types_of(stable.carries_in(result)) == types_before:
            return result
        return GuardedCall(self, args, kwargs).settle(result)


class _StableCarry(NamedTuple):
    """Where a jitted step returned its carry when there was nothing to cast."""

    keys: Sequence[Key]  # of the carries in the result; none if that is the carry
    treedef: PyTreeDef  # of a list of the carries

    def carries_in(self, result: PyTree) -> list[PyTree]:
        """Returns the carries in a result; none if it is another tree this time."""
        try:
            return [result[key] for key in self.keys] or [result]
        except (LookupError, TypeError):
            return []

    def types_of(self, carries: list[PyTree]) -> list[Aval] | None:
        """Returns the types of carries; None unless all are JAX arrays in this tree."""
        try:
            return list(map(_type_of_array, self.treedef.flatten_up_to(carries)))
        except (AttributeError, LookupError, TypeError, ValueError):
            return None


class GuardedCall:
    """One call of a guarded step, with its carry as it came in."""

    def __init__(self, guard: StepGuard, args: Args, kwargs: Kwargs):
        self._guard = guard
        self._carry = guard.carry
        self._args = args
        self._kwargs = kwargs
        values = guard.carry.take(args, kwargs)
        # Before the step runs, which may change its containers and objects in place.
        self._carried = [Snapshot(close_objects(value)) for value in values]
        self._object_snapshots = guard.carry.object_snapshots(args, kwargs)

    def run(self) -> PyTree:
        """Runs the step and settles its result.

        If a jitted step has weak leaves that come back strong, they are strong from the
        start. If it raises over types with x64 on, it runs once more with x64 off.
        """
        try:
            # Of what `jit` returns, JAX's or another library's.
            eval_shape = getattr(self._guard.step, "eval_shape", None)
            if eval_shape is not None and self._has_weak_leaf():
                try:
                    return self._attempt(self._carried_with_strong_leaves(eval_shape))
                except DtypeDriftError:
                    raise
                except ERRORS_OF_TYPES:
                    pass  # where promotion is strict, a weak number alone promotes
            return run_or_try_again(
                functools.partial(self._attempt, self._carried),
                self._attempt_without_x64,
                self._guard.warn_once,
            )
        except BaseException:
            # The caller may catch it, and go on with the objects.
            for snapshot in self._object_snapshots:
                snapshot.restore_types()
            raise

    def _attempt(self, carried: Sequence[Snapshot]) -> PyTree:
        values = _copies(carried)
        args, kwargs = self._carry.put(self._args, self._kwargs, values)
        result = self._guard.step(*args, **kwargs)
        return self.settle(result)

    def _has_weak_leaf(self) -> bool:
        leaves = itertools.chain(*[snapshot.data() for snapshot in self._carried])
        return any(map(_is_weak_and_known, leaves))

    def _carried_with_strong_leaves(self, eval_shape: Function) -> list[Snapshot]:
        """Returns the carries; a weak leaf that comes back strong in its dtype is strong.

        A jitted step compiles once for them. A leaf of an outer trace stays weak, because
        `lax.scan` finds its type by itself.
        """
        step = self._guard.step
        args = self._args
        if isinstance(step, types.MethodType):
            # It hands on the attributes of its function, which takes `self`.
            args = (step.__self__, *args)
        location = self._locate(eval_shape(*args, **self._kwargs))
        carried = list(self._carried)
        for number, tree in zip(location.numbers, location.values):
            shapes, treedef = tree_util.tree_flatten(close_objects(tree))
            if treedef == carried[number].treedef:
                carried[number] = carried[number].map(_typed_like, shapes)
        return carried

    def _attempt_without_x64(self) -> SecondAttempt[PyTree] | None:
        """Returns an attempt with x64 off; None if it is off, or a leaf has 64 bits."""
        if not (HAS_X64_SCOPE and x64_enabled()):
            return None
        object_values = [snapshot.before for snapshot in self._object_snapshots]
        arguments = close_objects((self._args, self._kwargs))
        leaves = tree_util.tree_leaves((object_values, arguments))
        if any(has_64_bits(leaf) and not is_weak(leaf) for leaf in leaves):
            return None

        def run():
            with set_x64(False):
                for snapshot in self._object_snapshots:
                    put_contents(snapshot.node, snapshot.before)
                # A weak 64-bit leaf is a Python number that the caller's jit has traced.
                return self._attempt(
                    [carry.map(_narrow_if_weak) for carry in self._carried]
                )

        description = f"{self._carry.step} failed with x64 on and was run with it off"
        return SecondAttempt(run, description, page="guard-a-step")

    def settle(self, result: PyTree) -> PyTree:
        """Returns what the step returned, with its carry settled."""
        policy = self._guard.policy
        returned = []
        is_of_dtypes = False
        try:
            location = self._locate(result)
            # All of them before any report, which names every leaf.
            in_place = []
            for snapshot, node in self._objects_after(location):
                output = self._output(snapshot.label)
                in_place.append(settle_object(output, snapshot, node, policy))
            for number, tree in zip(location.numbers, location.values):
                output = self._output(self._carry.labels[number])
                record = self._carried[number]
                returned.append(settle_carried(output, close_objects(tree), record, policy))
            refused = itertools.chain(*[settled.refused for settled in returned])
            is_of_dtypes = all(change.castable for change in refused)
            report_drift(
                [*in_place, *returned], self._output(""), policy, self._guard.warn_once
            )
        except TypeError as error:
            if is_of_dtypes or not self._carry.is_default:
                raise
            # Many steps take an index or a random key first, and a method `self`.
            message = (
                f"{error}\nA guard takes the first argument, {self._carry.labels[0]}, for "
                f"the carry. To name another: {self._carry.owner}(..., carry=NAME), or "
                'carry="self" for a method that returns its object.'
            )
            if isinstance(error, DtypeDriftError):
                raise DtypeDriftError(message, error.rows) from None
            raise TypeError(message) from None
        # The first item of what a loop's body returns is the carry.
        if any(settled.drifted for settled in returned) and not self._loop:
            first_carry = _copies(self._carried)[0]
            question = self._carry.ambiguity(location, first_carry)
            if question:
                self._guard.warn_once(question + more("guard-a-step"))
        value = location.put([open_objects(settled.tree) for settled in returned])
        if value is result and not self._object_snapshots:
            self._note_stable(location)
        return value

    def _note_stable(self, location: ReturnedCarry) -> None:
        """Has the next call with such a carry see that nothing is to be cast."""
        # `nnx.jit` and others return other types: their steps change objects in place.
        is_jitted = isinstance(self._guard.step, _Jitted)
        # Another node may give other items in brackets than JAX finds in it.
        has_brackets = isinstance(location.result, (tuple, list, dict))
        if is_jitted and (location.items is None or has_brackets):
            treedef = tree_util.tree_structure(list(location.values))
            self._guard.stable_carry = _StableCarry(location.keys, treedef)

    def _locate(self, result: PyTree) -> ReturnedCarry:
        values = _copies(self._carried)
        return self._carry.find(result, values, in_place=bool(self._object_snapshots))

    def _objects_after(
        self, location: ReturnedCarry
    ) -> Iterator[tuple[ObjectSnapshot, NNXObject]]:
        """Yields each object of before, and what has come back for it."""
        snapshot_by_label = {}
        for snapshot in self._object_snapshots:
            snapshot_by_label[snapshot.label] = snapshot
            yield snapshot, snapshot.node
        for number, tree in zip(location.numbers, location.values):
            for path, node in objects_by_path(tree).items():
                label = self._carry.labels[number] + path
                snapshot = snapshot_by_label.get(label)
                # A step may return a new object, such as a clone.
                if snapshot is not None and snapshot.node is not node:
                    yield snapshot, node

    def _output(self, label: str) -> Output:
        # Equinox's loops do not trace their body again.
        takes_any_type = self._loop != LOOPS_OF_EQUINOX
        carry = self._carry
        return Output(label, carry.step, carry.owner, starts_weak=takes_any_type)

    @functools.cached_property
    def _loop(self) -> str:
        """Whose loop has the step as its body; empty if none has."""
        leaves = itertools.chain(*[snapshot.leaves for snapshot in self._carried])
        # The body of a loop is traced.
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return calling_loop()
        return ""


def _copies(carried: Sequence[Snapshot]) -> list[PyTree]:
    return [open_objects(snapshot.copy()) for snapshot in carried]


def _typed_like(leaf: Leaf, returned: Leaf) -> Leaf:
    """Returns a weak leaf as a strong one if it comes back strong in the same dtype."""
    is_strong_alike = not is_weak(returned) and dtype_of(leaf) == dtype_of(returned)
    if is_strong_alike and _is_weak_and_known(leaf):
        return canonical(leaf)
    return leaf


def _is_weak_and_known(leaf: Leaf) -> bool:
    # A Python bool promotes like an array, and modules branch on theirs.
    return is_weak(leaf) and not isinstance(leaf, (bool, Tracer))


def _narrow_if_weak(leaf: Leaf) -> Leaf:
    if is_weak(leaf) and has_64_bits(leaf):
        return canonical(leaf)
    return leaf
