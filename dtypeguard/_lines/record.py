"""What is recorded of an array, a number, or what a line has read; nothing if nothing is.

`monitored.py` records while a context, a hook or a command of dtypeguard is open, from
Python 3.12 on.
"""

from collections.abc import Sequence

import jax
from jax.core import Tracer

from .._leaves.dtypes import is_array, kind
from .._leaves.types import DType, Leaf
from .._source.origin import Frame, Origin, Why, origin_of_frames
from .blame import Matches
from .monitored import RECORD
from .values import Made

_KNOWN = RECORD.recorder


def unwrapped(value: Leaf) -> Leaf:
    """The array, or the tracer of a jaxpr, behind tracers of `vmap`, `grad` and `jvp`."""
    while isinstance(value, Tracer):
        inner = getattr(value, "primal", None)
        inner = getattr(value, "val", None) if inner is None else inner
        if not is_array(inner):
            break
        value = inner
    return value


def made_of(value: Leaf) -> Made | None:
    """How a value was made; the record does not keep the value."""
    return _KNOWN.made(value) or _KNOWN.made(unwrapped(value))


def recorded(value: Leaf) -> Why:
    """The lines behind a value, or what a variable of a jaxpr stands for."""
    made = made_of(value)
    return made.why() if made else Why()


def object_lines(value: object) -> Sequence[Frame]:
    """The line that gave a function or an object to a variable first, and its callers."""
    made = _KNOWN.made(value)
    return made.through if made else ()


# How a Python number came to be, by its name or if one line alone gave it.
made_of_number = _KNOWN.number


def of_number(name: str, value: object) -> Origin | None:
    """The line that gave a Python number, by its name or if one line alone did."""
    made = _KNOWN.number(name, value)
    return origin_of_frames(made.through) if made else None


def read_on(line: Origin, matches: Matches) -> Origin | None:
    """The line that made the one array with a property that a line has read.

    Args:
        line: that has run.
        matches: whether an abstract value has the property.
    """
    made = [x for x in _KNOWN.read(line.file, line.line) if not x.type[1]]
    found = [each.why() for each in made if matches(_scalar(each.type[0]))]
    if any(why.is_earlier for why in found):  # it may be that one
        return None
    roots = [why.root for why in found]
    others = {x.users: x for x in roots if x and x.users.line != line.line}
    return others.popitem()[1] if len(others) == 1 else None


def _scalar(dtype: DType) -> jax.ShapeDtypeStruct:
    """A scalar of a dtype, as JAX makes it of an array of NumPy."""
    known = jax.dtypes.canonicalize_dtype(dtype) if kind(dtype) else dtype
    return jax.ShapeDtypeStruct((), known)
