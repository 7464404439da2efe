"""Names for what JAX and Optax hand around, for signatures; the mark of public names.

Most stand for `Any`: JAX does not type pytrees, and any object may be one.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

PyTree = Any
Leaf = Any  # of a tree: an array, a tracer, a `ShapeDtypeStruct`, a number, a function
DType = Any  # a NumPy dtype, or an extended one of JAX
Key = Any  # of a node: an int, a string, or any key of a dict
PyTreeDef = Any  # `jax.tree_util.PyTreeDef`, the structure of a tree
Params = Any
Updates = Any
State = Any
Optimizer = Any  # anything with `init` and `update`
NNXObject = Any  # a module, an optimizer, a metric or a Variable of Flax NNX
Aval = Any  # an abstract value: a dtype, a shape and whether its type is weak
Equation = Any  # of a jaxpr
Jaxpr = Any

Function = Callable[..., Any]
Step = Function  # takes its carry and returns it
Convert = Callable[[Leaf], Leaf]
Args = tuple[Any, ...]  # by position
Kwargs = Mapping[str, Any]  # by name
ExtraArgs = dict[str, Any]  # of an optimizer's update

_T = TypeVar("_T")


def public(thing: _T) -> _T:
    """Sets the module of a class or function to `dtypeguard`.

    Moving the code between rooms then changes no repr, and invalidates no pickle.
    """
    thing.__module__ = "dtypeguard"
    return thing
