"""The words of the signatures: what JAX and Optax call the things that are handed around.

Each stands for `Any`, since JAX has no types for them: a tree of JAX may be any object.
"""

from collections.abc import Callable
from typing import Any

PyTree = Any
Leaf = Any  # of a tree: an array, a tracer, a `ShapeDtypeStruct`, a number, a function
DType = Any  # a NumPy dtype, or an extended one of JAX
Params = Any
Updates = Any
State = Any
Optimizer = Any  # anything with `init` and `update`
Step = Callable[..., Any]  # takes what it carries, and returns it
Aval = Any  # an abstract value: a dtype, a shape and whether its type is weak
Equation = Any  # of a jaxpr
Jaxpr = Any
