"""The functions of control flow: how each is called, and what it is given."""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
from jax import tree_util

from .._leaves.dtypes import dtype_of, is_weak
from .._leaves.types import Function, Jaxpr, Kwargs, Leaf, PyTree
from .._lines.body import Body
from .._program.trace import strong_type


class Kind(NamedTuple):
    """A function of control flow.

    Attributes:
        name: of the function.
        form: what a call of it looks like, with a place for its body.
        keyword: the parameter of its body.
        position: of the body in a call.
        inputs: makes the arguments of the body from those of the call. Branches have none.
        carry: the position among them of what comes back.
        is_pair: whether the body returns a pair, of which the first item comes back.
        condition: the parameter of another function of the carry.
        is_held: whether JAX holds the jaxpr of the body where it compares types.
        headline: of a note.
        branches: makes the branches from the arguments, by the names of their parameters.
        module: that has the function.
        renamed: the names of parameters in the frame that compares the carry.
        compared: takes the carry from what that frame compares.
    """

    name: str
    form: str = ""
    keyword: str = ""
    position: int = 0
    inputs: Callable[[Kwargs], tuple[PyTree, ...]] = lambda given: ()
    carry: int = 0
    is_pair: bool = False
    condition: str = ""
    is_held: bool = True
    headline: str = "{some} of the carry of {name} {verb} back in another type."
    branches: Callable[[Kwargs], Kwargs] | None = None
    module: str = "jax.lax"
    renamed: Mapping[str, str] = {}
    compared: Callable[[PyTree], PyTree] = lambda value: value

    @property
    def function(self) -> Function | None:
        """The function; None if its module is not imported, or has none."""
        return getattr(sys.modules.get(self.module), self.name, None)

    @property
    def is_equinox(self) -> bool:
        """Whether it is Equinox's function, which compares a carry before it is traced."""
        return bool(self.renamed)

    def body(self, given: Kwargs, jaxprs: Sequence[Jaxpr]) -> Body:
        """The body of a loop, from its arguments and the jaxprs that may be the body's."""
        held = jaxprs if self.is_held else ()
        return Body(given[self.keyword], self.inputs(given), self.carry, self.is_pair, held)


def _slice(leaf: Leaf) -> jax.ShapeDtypeStruct:
    array = strong_type(leaf)
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)


def _index(lower: Leaf) -> jax.ShapeDtypeStruct:
    if is_weak(lower):
        with contextlib.suppress(TypeError):  # older releases have no weak ones
            return jax.ShapeDtypeStruct((), dtype_of(lower), weak_type=True)
    return jax.ShapeDtypeStruct((), dtype_of(lower))


_SCAN = Kind(
    "scan",
    "lax.scan({}, init, xs)",
    "f",
    inputs=lambda x: (x["init"], tree_util.tree_map(_slice, x.get("xs"))),
    is_pair=True,
)
_WHILE = Kind(
    "while_loop",
    "lax.while_loop(cond_fun, {}, init_val)",
    "body_fun",
    position=1,
    inputs=lambda x: (x["init_val"],),
    condition="cond_fun",
)
# What Equinox holds; it deletes its arguments.
_EQUINOX = {
    "module": "equinox.internal",
    "renamed": {"body_fun": "body_fun", "init_val": "val"},
}
KINDS = (
    _SCAN,
    _WHILE,
    Kind(
        "fori_loop",
        "lax.fori_loop(lower, upper, {}, init_val)",
        "body_fun",
        position=2,
        inputs=lambda x: (_index(x["lower"]), x["init_val"]),
        carry=1,
    ),
    Kind(
        "associative_scan",
        "lax.associative_scan({}, elems)",
        "fn",
        inputs=lambda x: (tree_util.tree_map(strong_type, x["elems"]),) * 2,
        is_held=False,  # JAX compares no types there
        headline="fn of {name} returns {some} in another type.",
    ),
    Kind("cond", branches=lambda x: {n: x.get(n) for n in ("true_fun", "false_fun")}),
    Kind(
        "switch",
        branches=lambda x: {
            f"branches[{number}]": branch
            for number, branch in enumerate(x.get("branches", ()))
        },
    ),
    _SCAN._replace(
        form="eqx.internal.scan({}, init, xs)",
        # Its loop carries an index and the results as well.
        compared=lambda x: x[1] if isinstance(x, tuple) and len(x) == 3 else None,
        **_EQUINOX,
    ),
    _WHILE._replace(form="eqx.internal.while_loop(cond_fun, {}, init_val)", **_EQUINOX),
)
