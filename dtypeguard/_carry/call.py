"""Splits a call of a step into its carried arrays, its other arrays and the rest."""

import functools
import types
from collections.abc import Collection, Sequence

import jax
import jax.numpy as jnp
from jax import tree_util

from .._leaves.dtypes import dtype_of, is_array
from .._leaves.modules import constants, gathered, spread
from .._leaves.types import Args, Function, Kwargs, Leaf, PyTree, Step
from .carry import Carry


class SplitTree:
    """A tree split into array leaves and the rest, which `merged` puts together again.

    Attributes:
        tree: the tree.
        treedef: its structure.
        arrays: its array leaves, including Python scalars.
        paths: the paths of these, as `jax.tree_util.keystr` prints them.

    Args:
        tree: any tree. The Python numbers of an Equinox module are constants, not arrays.
        static: types whose instances are not arrays either.
    """

    def __init__(self, tree: PyTree, static: Collection[type] = ()):
        self.tree = tree
        leaves, self.treedef = tree_util.tree_flatten_with_path(tree)
        self._leaves = [leaf for _, leaf in leaves]
        kept = constants(tree, self._leaves)
        self._is_array = [
            _is_array(leaf) and type(leaf) not in static and number not in kept
            for number, leaf in enumerate(self._leaves)
        ]
        arrays = [pair for pair, is_array in zip(leaves, self._is_array) if is_array]
        self.arrays = [leaf for _, leaf in arrays]
        self.paths = [tree_util.keystr(path) for path, _ in arrays]

    def merged(self, arrays: Sequence[Leaf]) -> PyTree:
        """The tree with these for its array leaves."""
        remaining = iter(arrays)
        pairs = zip(self._leaves, self._is_array)
        leaves = [next(remaining) if is_array else leaf for leaf, is_array in pairs]
        return tree_util.tree_unflatten(self.treedef, leaves)

    def holders(self, number: int) -> list[PyTree]:
        """The nodes of the tree around an array leaf, the innermost first."""
        left = [n for n, is_array in enumerate(self._is_array) if is_array][number]
        node, holders = self.tree, []
        while not tree_util.all_leaves([node]):
            holders.insert(0, node)
            for child in tree_util.tree_leaves(node, is_leaf=lambda x, n=node: x is not n):
                size = len(tree_util.tree_leaves(child))
                if left < size:
                    node = child
                    break
                left -= size
        return holders


def _is_array(leaf: Leaf) -> bool:
    is_extended = is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    return is_extended or dtype_of(leaf) is not None


class _Hole:
    """A placeholder for one carry in the arguments of a call."""

    def __init__(self, number: int):
        self.number = number


# Outside the carry, such a number may decide what is traced. A constant promotes like an
# argument.
_NUMBERS = (bool, int, float, complex)


class Call:
    """A call of a step that can be repeated with other arrays.

    It carries the arguments that come back, and the Flax NNX objects among all arguments,
    which the step changes in place. A repeated call runs on copies of these objects, so
    the caller's stay as they are.

    Attributes:
        names: the name of each carry.
        carried: the carries.
        rest: all other arguments.

    Args:
        step: the step.
        carry: which of its arguments come back.
        args: its arguments by position.
        kwargs: its arguments by name.
        static: types whose instances among the other arguments are not arrays.
        in_place: whether NNX objects are carried. Otherwise they are trees like any other.
    """

    def __init__(
        self,
        step: Step,
        carry: Carry,
        args: Args,
        kwargs: Kwargs,
        *,
        static: Collection[type] = _NUMBERS,
        in_place: bool = True,
    ):
        self._step = step
        self._carry = carry
        self._values = carry.take(args, kwargs)
        self._spread = spread if in_place else lambda tree: tree
        inside = carry.held(self._values, {}) if in_place else []
        known = {id(each.node) for each in inside}
        held = carry.held(args, kwargs) if in_place else []
        held = [each for each in held if id(each.node) not in known]
        self._is_in_place = bool(inside or held)
        self._objects = {id(x.node): len(self._values) + n for n, x in enumerate(held)}
        self.names = (*carry.labels, *(each.label for each in held))
        given = (*self._values, *(each.node for each in held))
        self.carried = [SplitTree(self._spread(value)) for value in given]
        holes = tuple(map(_Hole, range(len(self._values))))
        rest = carry.put(args, kwargs, holes)
        is_held = lambda node: id(node) in self._objects
        if held:
            make_hole = lambda x: _Hole(self._objects[id(x)]) if is_held(x) else x
            rest = tree_util.tree_map(make_hole, rest, is_leaf=is_held)
        self.rest = SplitTree(rest, static)

    def bind(
        self, carried: Sequence[Sequence[Leaf]], others: Sequence[Leaf]
    ) -> tuple[Function, list[PyTree]]:
        """The call with other arrays.

        Args:
            carried: the array leaves of each carry.
            others: the array leaves of the other arguments.

        Returns:
            A function that makes the call, and the carries that it passes in.
        """
        trees = [parts.merged(arrays) for parts, arrays in zip(self.carried, carried)]
        given, rest = gathered((trees, self.rest.merged(others)))
        fill = lambda leaf: given[leaf.number] if isinstance(leaf, _Hole) else leaf
        args, kwargs = tree_util.tree_map(fill, rest)
        step = self._step
        if id(self._carry.bound) in self._objects:
            owner = given[self._objects[id(self._carry.bound)]]
            step = types.MethodType(getattr(step, "__func__"), owner)  # noqa: B009
        return functools.partial(step, *args, **kwargs), given

    def returned(
        self, result: PyTree, given: Sequence[PyTree]
    ) -> tuple[list[SplitTree], SplitTree]:
        """What comes back for each carry, and the other results.

        Args:
            result: the result of the step.
            given: the carries that were passed in. For an object that the step changed in
                place and did not return, its new contents come back.

        Raises:
            TypeError: if the carry is not in the result.
        """
        found = self._carry.find(result, self._values, self._is_in_place)
        after = list(given)
        for number, value in zip(found.carried, found.values):
            after[number] = value
        returned = [SplitTree(self._spread(value)) for value in after]
        return returned, SplitTree(self._spread(found.others))

    def run(
        self, carried: Sequence[Sequence[Leaf]], others: Sequence[Leaf]
    ) -> list[SplitTree]:
        """Makes the call with these arrays; returns what comes back for each carry."""
        call, given = self.bind(carried, others)
        return self.returned(call(), given)[0]
