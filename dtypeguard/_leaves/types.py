"""Names for what JAX and Optax hand around, for signatures; the mark of public names."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

# JAX types neither trees nor their leaves: any object may be one, and an unknown node is a
# leaf. The other names of trees say what a tree is for.
PyTree = Any
Leaf = Any  # an array, a tracer, a `ShapeDtypeStruct`, a number, a function
Params = PyTree
Updates = PyTree
State = PyTree
PyTreeDef = Any  # the structure of a tree: a class of jaxlib, which has no types
# A NumPy dtype, or an extended one of JAX, which has no public class; None for no array.
DType = Any
# JAX types what is in a jaxpr as abstract values, which have no dtype there.
Jaxpr = Any
# Flax need not be there: a module, an optimizer, a metric or a Variable of Flax NNX.
NNXObject = Any
Key = Hashable  # of an item: an int, a string, or any key of a dict

Function = Callable[..., Any]
Step = Function  # takes its carry and returns it
Convert = Callable[[Leaf], Leaf]
Args = tuple[PyTree, ...]  # by position
Kwargs = Mapping[str, PyTree]  # by name
ExtraArgs = dict[str, PyTree]  # of an optimizer's update


class Optimizer(Protocol):
    """A gradient transformation of Optax, or any object with these two functions."""

    @property
    def init(self) -> Callable[..., State]:
        """Makes a first state of params."""
        ...

    @property
    def update(self) -> Callable[..., tuple[Updates, State]]:
        """Makes of gradients, state and params the updates and the next state."""
        ...


class Aval(Protocol):
    """An abstract value: the type of a traced array."""

    dtype: DType
    shape: tuple[int, ...]
    weak_type: bool

    def update(self, **fields: Any) -> Any:
        """Returns the type with other fields."""
        ...


class Equation(Protocol):
    """An equation of a jaxpr."""

    primitive: Any
    params: dict[str, Any]
    invars: Sequence[Any]
    outvars: Sequence[Any]
    effects: Collection[object]
    # The line of source, and the flags under which it was traced.
    source_info: Any
    ctx: Any

    def replace(self, **fields: Any) -> Any:
        """Returns the equation with other fields."""
        ...


_T = TypeVar("_T")


def public(thing: _T) -> _T:
    """Sets the module of a class or function to `dtypeguard`.

    Moving the code between rooms then changes no repr, and invalidates no pickle.
    """
    thing.__module__ = "dtypeguard"
    return thing
