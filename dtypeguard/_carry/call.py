"""A call of a step, taken apart into its arrays and the rest."""

import functools
import types
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from .._leaves.types import Args, Jaxpr, Kwargs, Leaf, PyTree, Step
from .carry import Carry
from .modules import close_objects, gathered, objects_by_path, open_objects, spread
from .split import SplitTree
from .tracing import make_jaxpr_with_aux

# Outside the carry, such a number may decide what is traced. A constant promotes like an
# argument.
_STATIC_TYPES = (bool, int, float, complex)


class SplitResult(NamedTuple):
    """The result of a call, taken apart."""

    carried: list[SplitTree]  # for each carry that came in
    others: SplitTree  # the other results

    @property
    def arrays(self) -> list[list[Leaf]]:
        """The arrays of each tree, those of the other results last."""
        trees = (*self.carried, self.others)
        return [tree.arrays for tree in trees]


class Call:
    """A call of a step that can be repeated with other arrays.

    It carries the arguments that come back and the Flax NNX objects among all arguments, of
    which a repeated call gets copies.

    Args:
        step: the step.
        carry: which of its arguments come back.
        args: the arguments of the call.
        kwargs: its arguments by name.
        static: types of leaves outside of the carry that are no arrays.
        in_place: whether the step may change Flax NNX objects in place.

    Attributes:
        names: the label of each carry.
        carried: the carries, split.
        rest: the other arguments, split.
    """

    def __init__(
        self,
        step: Step,
        carry: Carry,
        args: Args,
        kwargs: Kwargs,
        *,
        static: Collection[type] = _STATIC_TYPES,
        in_place: bool = True,
    ):
        self._step = step
        self._carry = carry
        self._in_place = in_place
        self._values = carry.take(args, kwargs)
        self.names = list(carry.labels)
        self._trees = list(self._values)
        # A carry that stayed among the other arguments would come in twice.
        nothing = [None for _ in self._values]
        rest = carry.put(args, kwargs, nothing)
        if in_place:
            inner_objects = objects_by_path(self._values).values()
            inner_ids = set(map(id, inner_objects))
            # Each object outside of the carries is a carry of its own.
            for snapshot in carry.object_snapshots(args, kwargs):
                if id(snapshot.node) not in inner_ids:
                    self.names.append(snapshot.label)
                    self._trees.append(snapshot.node)
            rest = close_objects(rest)
        self.carried: list[SplitTree] = []
        for tree in self._trees:
            split = self._split(tree)
            self.carried.append(split)
        self.rest = SplitTree(rest, static)

    def _split(self, tree: PyTree) -> SplitTree:
        if self._in_place:
            tree = spread(tree)
        return SplitTree(tree)

    @property
    def arrays(self) -> list[list[Leaf]]:
        """The arrays of each carry."""
        return [tree.arrays for tree in self.carried]

    def with_arrays(
        self,
        carried: Sequence[Sequence[Leaf]],
        rest: Sequence[Leaf],
    ) -> tuple[Callable[[], PyTree], list[PyTree]]:
        """Returns the call with other arrays, and its carries with them."""
        trees = []
        for tree, arrays in zip(self.carried, carried):
            merged = tree.merged(arrays)
            trees.append(merged)
        args, kwargs = self.rest.merged(rest)
        step = self._step
        if self._in_place:
            # All at once: an object in two trees has one copy.
            trees = gathered(trees)
            originals = objects_by_path(self._trees).values()
            copies = objects_by_path(trees).values()
            original_ids = map(id, originals)
            copy_by_id = dict(zip(original_ids, copies))
            args, kwargs = open_objects((args, kwargs), copy_by_id)
            # A bound method of the caller's object would change that, and leak tracers
            # into it.
            bound_id = id(self._carry.bound)
            owner = copy_by_id.get(bound_id)
            if owner is not None:
                function = getattr(step, "__func__")  # noqa: B009
                step = types.MethodType(function, owner)
        args, kwargs = self._carry.put(args, kwargs, trees)
        call = functools.partial(step, *args, **kwargs)
        return call, trees

    def split_result(self, result: PyTree, trees: Sequence[PyTree]) -> SplitResult:
        """Takes a result apart.

        Args:
            result: of the call.
            trees: the carries that it was given, of which it may have changed objects.
        """
        has_objects = False
        if self._in_place:
            has_objects = bool(objects_by_path(self._trees))
        location = self._carry.find(result, self._values, has_objects)
        after = list(trees)
        for number, value in zip(location.numbers, location.values):
            after[number] = value
        carried = [self._split(tree) for tree in after]
        others = self._split(location.others)
        return SplitResult(carried, others)

    def run(self, carried: Sequence[Sequence[Leaf]], rest: Sequence[Leaf]) -> SplitResult:
        """Makes the call with other arrays."""
        call, trees = self.with_arrays(carried, rest)
        result = call()
        return self.split_result(result, trees)

    def trace(
        self,
        carried: Sequence[Sequence[Leaf]],
        failure: Exception,
    ) -> tuple[Jaxpr, SplitResult]:
        """Traces the call to a closed jaxpr, whose inputs and outputs are all arrays.

        Args:
            carried: the arrays of the carries, or their types.
            failure: raised if the step raises.
        """

        def run(carried, rest):
            call, trees = self.with_arrays(carried, rest)
            # The errors of what follows are about the carry, and ours.
            try:
                result = call()
            except Exception as error:
                raise failure from error
            returned = self.split_result(result, trees)
            return returned.arrays, returned

        return make_jaxpr_with_aux(run, carried, self.rest.arrays)
