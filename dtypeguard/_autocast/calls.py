"""A call of a function: its arrays, its trace, and what it changes in place."""

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import tree_util
from jax.core import Tracer

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

# A Python number may decide what is traced.
_NUMBERS = (bool, int, float, complex)
# What a function returns of NumPy is none of what is traced, and stays of NumPy.
_CONSTANTS = (*_NUMBERS, np.ndarray, *{*np.sctypeDict.values()})
# So many traces are kept.
_MOST = 100


class WholeCall:
    """A call of a function, with its arrays apart.

    Flax NNX objects among the arguments are trees of what they hold. The function that is
    traced changes copies of them; then what these hold is put into the objects.

    Attributes:
        arrays: its arrays.
        function: what is called with the arguments, and with the object of a method of NNX.

    Args:
        function: any function.
        args: its arguments by position.
        kwargs: its arguments by name.
    """

    def __init__(self, function: Function, args: Args, kwargs: Kwargs):
        self.function, owner = _split(function)
        given = (*owner, *args), dict(kwargs)
        self._given = SplitTree(spread(given), _NUMBERS)
        self._objects = _objects(given)
        self.arrays = self._given.arrays

    def run(self, arrays: Sequence[Leaf]) -> tuple[list[Leaf], "Returned"]:
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

    def emptied(self) -> Callable[[Sequence[Leaf]], tuple[list[Leaf], "Returned"]]:
        """`run` of the same call, which keeps none of its arrays alive."""
        call = copy.copy(self)
        call._given, call.arrays = self._given.emptied(), []
        return call.run

    @property
    def key(self) -> object:
        """What a trace depends on beside arrays; None if it is not to be kept.

        Outside of a trace Python runs in each call, as it does without `autocast`.
        """
        if self._objects or not any(isinstance(x, Tracer) for x in self.arrays):
            return None
        others = [(path, type(x), x) for path, x in self._given.constants().items()]
        key = self._given.treedef, (*others,)
        try:
            hash(key)
        except TypeError:
            return None
        return key


class Returned(NamedTuple):
    """What a call returns.

    Attributes:
        tree: the result and what NNX objects hold after, without arrays.
        copies: those of the NNX objects, which the function changed.
    """

    tree: SplitTree
    copies: list[NNXObject]


class Traces:
    """The traces of a function: Python runs once for the same types."""

    def __init__(self):
        self._functions: OrderedDict[object, tuple[Callable[..., Any], dict[Any, Any]]]
        self._functions = OrderedDict()

    def of(self, call: WholeCall) -> tuple[Jaxpr, Returned]:
        """The closed jaxpr of a call, and what it returns without arrays."""
        key = call.key
        if key is None:
            made: list[Returned] = []

            def function(arrays):
                results, rest = call.run(arrays)
                made[:] = [rest]
                return results

            return jax.make_jaxpr(function)(call.arrays), made[0]
        if key not in self._functions:
            self._functions[key] = _traceable(call)
            if len(self._functions) > _MOST:
                self._functions.popitem(last=False)
        function, returned = self._functions[key]
        # JAX keeps the trace, and knows on what else it depends.
        jaxpr = function.trace(call.arrays).jaxpr  # pyright: ignore[reportFunctionMemberAccess]: of `jax.jit`
        if jaxpr.consts:  # arrays that the function holds, which may be others next time
            del self._functions[key]
        return jaxpr, returned[_types(call.arrays)]


def _traceable(call: WholeCall) -> tuple[Callable[..., Any], dict[Any, Any]]:
    returned: dict[Any, Returned] = {}
    run = call.emptied()

    @jax.jit
    def function(arrays):
        results, returned[_types(arrays)] = run(arrays)
        return results

    return function, returned


def _types(arrays: Sequence[Leaf]) -> tuple[Any, ...]:
    return (*((x.shape, x.dtype) for x in map(jax.typeof, arrays)),)


def _split(function: Function) -> tuple[Function, tuple[PyTree, ...]]:
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
