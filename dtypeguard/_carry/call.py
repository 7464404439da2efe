"""A call of a step, taken apart into its arrays and the rest."""

import functools
import types
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from jax import tree_util

from .._leaves.types import Args, Jaxpr, Kwargs, Leaf, PyTree, Step
from .carry import Carry
from .modules import gathered, objects_by_path, spread
from .split import SplitTree
from .tracing import make_jaxpr_with_aux

# Outside the carry, such a number may decide what is traced. A constant promotes like an
# argument.
_STATIC_TYPES = (bool, int, float, complex)


class _Hole:
    """A placeholder for one carry in the arguments of a call."""

    def __init__(self, number: int):
        self.number = number


class SplitResult(NamedTuple):
    """The result of a call, taken apart."""

    carried: list[SplitTree]  # for each carry that came in
    others: SplitTree  # the other results

    @property
    def arrays(self) -> list[list[Leaf]]:
        """The arrays of each tree, those of the other results last."""
        return [tree.arrays for tree in (*self.carried, self.others)]


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
        trees = list(self._values)  # then the objects
        # Each object outside of the carries is a carry of its own. This has its index among
        # all carries.
        self._index_by_object_id: dict[int, int] = {}
        inner_nodes = list(objects_by_path(self._values).values()) if in_place else []
        inner_ids = {id(node) for node in inner_nodes}
        object_snapshots = carry.object_snapshots(args, kwargs) if in_place else []
        for snapshot in object_snapshots:
            if id(snapshot.node) not in inner_ids:
                self._index_by_object_id[id(snapshot.node)] = len(trees)
                self.names.append(snapshot.label)
                trees.append(snapshot.node)
        self._has_objects = bool(inner_nodes or object_snapshots)
        self.carried = [self._split(tree) for tree in trees]
        holes = [_Hole(number) for number in range(len(self._values))]
        arguments = carry.put(args, kwargs, holes)
        if self._index_by_object_id:
            arguments = tree_util.tree_map(
                self._hole_for, arguments, is_leaf=self._is_carried
            )
        self.rest = SplitTree(arguments, static)

    def _split(self, tree: PyTree) -> SplitTree:
        return SplitTree(spread(tree) if self._in_place else tree)

    def _is_carried(self, node: PyTree) -> bool:
        return id(node) in self._index_by_object_id

    def _hole_for(self, leaf: Leaf) -> Leaf:
        return _Hole(self._index_by_object_id[id(leaf)]) if self._is_carried(leaf) else leaf

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
        trees = [tree.merged(arrays) for tree, arrays in zip(self.carried, carried)]
        # All at once: an object in two trees has one copy.
        trees, arguments = gathered((trees, self.rest.merged(rest)))

        def fill(leaf):
            return trees[leaf.number] if isinstance(leaf, _Hole) else leaf

        args, kwargs = tree_util.tree_map(fill, arguments)
        step = self._step
        # A bound method of the caller's object would change that, and leak tracers into it.
        if self._is_carried(self._carry.bound):
            owner = trees[self._index_by_object_id[id(self._carry.bound)]]
            step = types.MethodType(getattr(step, "__func__"), owner)  # noqa: B009
        return functools.partial(step, *args, **kwargs), trees

    def split_result(self, result: PyTree, trees: Sequence[PyTree]) -> SplitResult:
        """Takes a result apart.

        Args:
            result: of the call.
            trees: the carries that it was given, of which it may have changed objects.
        """
        location = self._carry.find(result, self._values, self._has_objects)
        after = list(trees)
        for number, value in zip(location.numbers, location.values):
            after[number] = value
        carried = [self._split(tree) for tree in after]
        return SplitResult(carried, self._split(location.others))

    def run(self, carried: Sequence[Sequence[Leaf]], rest: Sequence[Leaf]) -> SplitResult:
        """Makes the call with other arrays."""
        call, trees = self.with_arrays(carried, rest)
        return self.split_result(call(), trees)

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

        jaxpr, returned = make_jaxpr_with_aux(run, carried, self.rest.arrays)
        return jaxpr, returned
