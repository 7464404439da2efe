"""A call of a function: its arrays, its trace, and what it changes in place."""

import inspect
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import tree_util

from .._carry.modules import (
    Contents,
    contents,
    gathered,
    is_in_place,
    put_contents,
    spread,
)
from .._carry.split import SplitTree
from .._leaves.types import Args, Function, Jaxpr, Kwargs, Leaf, NNXObject, PyTree
from .._program.aligned import Alignment, beside_trace, sibling_dtypes

# A Python number may decide what is traced.
_STATIC_NUMBERS = (bool, int, float, complex)
# What a function returns of NumPy is none of what is traced, and stays of NumPy.
_CONSTANTS = (*_STATIC_NUMBERS, np.ndarray, *{*np.sctypeDict.values()})


class WholeCall:
    """A call of a function, with its arrays apart.

    Flax NNX objects among the arguments are trees of what they hold. The function that is
    traced changes copies of them; then what these hold is put into the objects.

    Attributes:
        arrays: its arrays.
        function: what is called with the arguments, and with the object of a method of NNX.
    """

    def __init__(self, function: Function, args: Args, kwargs: Kwargs):
        self.function, owner = _split_method(function)
        given = (*owner, *args), dict(kwargs)
        self._given = SplitTree(spread(given), _STATIC_NUMBERS)
        self._objects = _objects(given)
        self.arrays = self._given.arrays

    def traced(self) -> tuple[Jaxpr, "Returned"]:
        """The closed jaxpr of the call, and what it returns without arrays."""
        made: list[Returned] = []

        def function(arrays):
            results, rest = self._run(arrays)
            made[:] = [rest]
            return results

        return jax.make_jaxpr(function)(self.arrays), made[0]

    def beside_sibling(self, program: Jaxpr) -> Alignment | None:
        """The call as traced beside its trace of arrays in other dtypes."""

        def function(*arrays):
            results, _ = self._run(arrays)
            return results

        return beside_trace(program, function, self.arrays, sibling_dtypes(self.arrays))

    def _run(self, arrays: Sequence[Leaf]) -> tuple[list[Leaf], "Returned"]:
        """Calls the function with other arrays: the arrays that come back, and the rest."""
        args, kwargs = gathered(self._given.merged(arrays))
        copies = _objects((args, kwargs))
        result = self.function(*args, **kwargs)
        held = [contents(each) for each in copies]
        made = SplitTree((spread(result), held), _CONSTANTS)
        return made.arrays, Returned(made.emptied(), copies)

    def returned(self, of: "Returned", arrays: Sequence[Leaf]) -> PyTree:
        """The result of the call, after what it changes in place has changed."""
        result, held = of.tree.merged(arrays)
        for node, after in zip(self._objects, held):
            put_contents(node, after.values)
        if not self._objects:
            return gathered(result)
        own = {id(each): node for each, node in zip(of.copies, self._objects)}
        is_contents = lambda node: isinstance(node, Contents)
        is_own = lambda node: is_contents(node) and id(node.node) in own
        put = lambda node: own[id(node.node)] if is_own(node) else node
        return gathered(tree_util.tree_map(put, result, is_leaf=is_contents))


class Returned(NamedTuple):
    """What a call returns.

    Attributes:
        tree: the result and what NNX objects hold after, without arrays.
        copies: those of the NNX objects, which the function changed.
    """

    tree: SplitTree
    copies: list[NNXObject]


def _split_method(function: Function) -> tuple[Function, tuple[PyTree, ...]]:
    """A function, and the object of NNX that it is a method of."""
    if inspect.ismethod(function) and is_in_place(function.__self__):
        return function.__func__, (function.__self__,)
    if is_in_place(function):
        return type(function).__call__, (function,)
    return function, ()


def _objects(tree: PyTree) -> list[NNXObject]:
    """The NNX objects of a tree, each once."""
    nodes = tree_util.tree_leaves(tree, is_leaf=is_in_place)
    return [*{id(node): node for node in nodes if is_in_place(node)}.values()]
