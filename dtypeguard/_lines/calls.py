"""What a jaxpr does not have of a program while it is traced: calls, and casts to nothing.

A call between the user's code and JAX is seen as it begins; a cast to the dtype that a
value has anyway, of which JAX makes no equation, becomes one.
"""

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


class Calls:
    """While entered, sees the calls between the user's code and JAX in this thread.

    It is a profile function (`sys.setprofile`), which stands beside coverage tools and
    debuggers. If there is one already, it leaves that alone and sees nothing.

    A cast that is asked for is an equation, though it changes nothing: in a program that is
    to be wider it is where width ends. `x.astype(jnp.bfloat16)` does nothing to a bfloat16
    array, and rounds a float32 one.
    """

    def __enter__(self):
        self._is_inside = False  # of a call into JAX
        self._running: dict[FrameType, bool] = {}
        self._common, thread = set[FrameType](), get_ident()
        self._patched = contextlib.ExitStack()
        for module, name in CASTING.variables():
            cast = module[name]
            self._patched.callback(module.__setitem__, name, cast)
            module[name] = self._kept(cast, thread)
        if sys.getprofile() is None:
            self._patched.callback(sys.setprofile, None)
            sys.setprofile(self._on_event)
        return self

    def __exit__(self, *exception):
        self._patched.close()
        self._running.clear()
        self._common.clear()

    def into_jax(self, frame: FrameType, user: FrameType) -> None:
        """Sees a call from the user's code, of a function of JAX or of a package."""

    def _on_event(self, frame: FrameType, event: str, value: object) -> None:
        """A function begins, or a generator goes on; it returns or yields."""
        if event == "return":
            self._is_inside = self._running.pop(frame, self._is_inside)
        if event != "call":
            return
        user, is_own = frame.f_back, is_users(frame.f_code.co_filename)
        # In `promote_dtype` of Flax a cast is asked for if a dtype is.
        is_common = is_own and frame.f_code in COMMON_DTYPE.codes()
        if is_common and frame.f_locals.get("dtype") is None:
            self._common.add(frame)
        if not is_own and (
            self._is_inside or not (user and is_users(user.f_code.co_filename))
        ):
            return
        self._running[frame], self._is_inside = self._is_inside, False
        if user and not is_own:
            self.into_jax(frame, user)
            self._is_inside = True

    def _kept(self, cast: Cast, thread: int) -> Cast:
        """JAX's own cast, which keeps what is asked for."""

        def function(operand, *args, **kwargs):
            made = cast(operand, *args, **kwargs)
            if made is not operand or not isinstance(made, Tracer) or get_ident() != thread:
                return made
            is_float = kind(made.dtype) in ("float", "complex")
            frame = sys._getframe(1)
            is_common = not self._common.isdisjoint(itertools.islice(callers(frame), _NEAR))
            if is_float and not is_common and _is_asked(frame):
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


_NEAR = 20  # frames: a cast, and the function of Flax that makes it
# The arguments by which they take a dtype; a scalar type is called itself.
_DTYPES = "dtype", "new_dtype", "self"
