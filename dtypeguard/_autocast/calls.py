"""A call of a function: its arrays, its trace, and the objects that it changes in place."""

import functools

import numpy as np

from .._carry.modules import (
    Contents,
    contents,
    gathered,
    map_nodes,
    objects_by_path,
    put_contents,
    spread,
)
from .._carry.split import SplitTree
from .._carry.tracing import make_jaxpr_with_aux
from .._leaves.types import Args, Function, Jaxpr, Kwargs, PyTree
from .._numbers.subject import with_owner
from .._program.aligned import SecondTraces, beside_trace, sibling_dtypes
from .._program.jaxprs import Arrays

# A Python number may decide what is traced.
_STATIC_NUMBERS = (bool, int, float, complex)
# NumPy results are not traced, and stay NumPy results.
_NUMPY_SCALARS = set(np.sctypeDict.values())
_CONSTANTS = (*_STATIC_NUMBERS, np.ndarray, *_NUMPY_SCALARS)


class WholeCall:
    """A call of a function, split into its arrays and the rest.

    The traced function changes copies of the Flax NNX objects among the arguments. Then
    the contents of the copies are put into the objects.

    Attributes:
        arrays: its arrays.
    """

    def __init__(self, function: Function, args: Args, kwargs: Kwargs):
        self._function, args = with_owner(function, args)
        arguments = (args, kwargs)
        tree = spread(arguments)
        self._arguments = SplitTree(tree, _STATIC_NUMBERS)
        objects = objects_by_path(arguments)
        self._objects = list(objects.values())
        self.arrays = self._arguments.arrays

    def trace(self) -> tuple[Jaxpr, SplitTree]:
        """Returns the closed jaxpr of the call, and its result without arrays."""
        return make_jaxpr_with_aux(self._run, *self.arrays)

    def second_traces(self, program: Jaxpr) -> SecondTraces:
        """Returns the traced call beside its trace of arrays in other dtypes."""
        dtypes = sibling_dtypes(program)
        align = functools.partial(beside_trace, program, self._run, dtypes)
        return SecondTraces(align_sibling=align)

    def _run(self, *arrays):
        """Returns the arrays of the result and of the objects after it, and the rest."""
        arguments = self._arguments.merged(arrays)
        args, kwargs = gathered(arguments)
        # Before the call, after which an object may hold others.
        copies = objects_by_path((args, kwargs))
        result = self._function(*args, **kwargs)
        objects = copies.values()
        contents_after = list(map(contents, objects))
        after = (spread(result), contents_after)
        tree = SplitTree(after, _CONSTANTS)
        return tree.arrays, tree.emptied()

    def finish(self, traced: SplitTree, arrays: Arrays) -> PyTree:
        """Changes the objects in place, and returns the result with its arrays."""
        result, contents_after = traced.merged(arrays)
        original_of = {}
        for copy, original in zip(contents_after, self._objects):
            put_contents(original, copy.values)
            identity = id(copy.node)
            original_of[identity] = original

        # The function may return an object that it was given.
        def restore(copy):
            identity = id(copy.node)
            return original_of.get(identity, copy)

        restored = map_nodes(restore, result, Contents)
        return gathered(restored)
