"""Casts to the dtype that a value has anyway, of which JAX makes no equation."""

import contextlib
import itertools
import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType

from jax.core import Tracer
from jax.lax import convert_element_type_p

from .._leaves.dtypes import kind
from .._leaves.internals import CASTING, CASTS, COMMON_DTYPE
from .._leaves.types import Leaf
from .._source.files import is_users
from .._source.origin import callers, release

Cast = Callable[..., Leaf]


class NoOpCasts:
    """While entered, a cast that is asked for is an equation, though it changes nothing.

    In a program that is to be wider it is where width ends: `x.astype(jnp.bfloat16)` does
    nothing to a bfloat16 array, and rounds a float32 one.
    """

    def __enter__(self):
        self._is_common, thread = False, get_ident()
        self._patched = contextlib.ExitStack()
        for module, name in CASTING.variables():
            cast = module[name]
            self._patched.callback(module.__setitem__, name, cast)
            module[name] = self._kept(cast, thread)
        return self

    def __exit__(self, *exception):
        self._patched.close()

    def _kept(self, cast: Cast, thread: int) -> Cast:
        """JAX's own cast, which keeps what is asked for."""

        def function(operand, *args, **kwargs):
            made = cast(operand, *args, **kwargs)
            if made is not operand or not isinstance(made, Tracer) or get_ident() != thread:
                return made
            is_float = kind(made.dtype) in ("float", "complex")
            if is_float and not self._is_common and _is_asked(sys._getframe(1)):
                # JAX removes a conversion to the same type, and a weak one is another.
                for weak in (True, False):
                    params = {"new_dtype": made.dtype, "weak_type": weak, "sharding": None}
                    made = convert_element_type_p.bind(made, **params)
            return made

        # To all that read frames, and so to the equations, it is JAX's.
        like = cast.__code__
        function.__code__ = function.__code__.replace(
            co_filename=like.co_filename, co_name=like.co_name, co_qualname=like.co_qualname
        )
        return function

    def into_user(self, frame: FrameType) -> Callable[[object], None]:
        """Sees a call of a package's code; returns what sees its end.

        Within `promote_dtype` of Flax, a cast is asked for if a dtype is.
        """
        before = self._is_common
        if frame.f_code in COMMON_DTYPE.codes():
            self._is_common = frame.f_locals.get("dtype") is None

        def left(value: object) -> None:
            self._is_common = before

        return left


def _is_asked(frame: FrameType) -> bool:
    """Whether the user asks for a dtype, by frames from inside JAX outwards."""
    called = itertools.chain([frame], callers(frame))
    inside = itertools.takewhile(lambda x: not is_users(x.f_code.co_filename), called)
    functions = [x for x in inside if "<locals>" not in x.f_code.co_qualname]
    if not functions or functions[-1].f_code.co_qualname not in CASTS:
        return False
    # `asarray` and the like cast to no dtype if none is given.
    is_asked = any(functions[-1].f_locals.get(x) is not None for x in _DTYPES)
    release(functions[-1:])
    return is_asked


# The arguments by which they take a dtype; a scalar type is called itself.
_DTYPES = "dtype", "new_dtype", "self"
