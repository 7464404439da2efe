"""What the source says of an equation: its line, its calls, what they ask for."""

import inspect
import itertools
from collections.abc import Iterator, Sequence

import jax

from .._leaves.casts import Cast
from .._leaves.internals import (
    CASTS,
    PROMOTING,
    REPEATED,
    REPEATING,
    TRANSPOSED,
)
from .._leaves.types import Equation
from .._source.files import is_ours, is_users
from .._source.origin import Frame, Origin, origin_of_frames
from .frames import (
    Chain,
    calls_by_jaxpr,
    frames_of,
    scopes_of,
    until_users,
)


class Written:
    """An equation as it is written: its line, the calls that lead there, what they ask for.

    Args:
        stack: the equation and those that contain it, inside out. JAX's own functions are
            skipped in favor of their callers.
    """

    __slots__ = ("_stack",)

    def __init__(self, stack: Sequence[Equation]):
        self._stack = stack

    @property
    def origin(self) -> Origin | None:
        """The innermost line outside JAX and dtypeguard that it comes from."""
        frames = frames_of(self._stack)
        return origin_of_frames(frame for frame in frames if is_users(frame.file))

    @property
    def calls(self) -> Chain:
        """The calls that lead to the line of `origin`, inside out; () if not known.

        They tell apart the calls on a line, and those of a function that contains it.
        """
        return next(filter(None, calls_by_jaxpr(self._stack)), ())

    @property
    def scope(self) -> tuple[str, ...]:
        """The scopes of `jax.named_scope` around it, outside in.

        Flax and Haiku name the modules so, and `einsum` what it computes, which is none.
        """
        scopes = itertools.chain.from_iterable(map(scopes_of, reversed(self._stack)))
        names = [x.name for x in scopes if type(x).__name__ == "Scope"]
        others = lambda name: isinstance(name, Cast) or name == REPEATED or "->" in name
        return tuple(name for name in names if not others(name))

    @property
    def cast_of_ours(self) -> Cast | None:
        """The cast of dtypeguard that it belongs to; None if it is the user's."""
        names = (scope.name for each in self._stack for scope in reversed(scopes_of(each)))
        return next((name for name in names if isinstance(name, Cast)), None)

    @property
    def is_of_users(self) -> bool:
        """Whether a line outside JAX made it itself, and no jitted function of JAX."""
        return any(is_users(frame.file) for frame in frames_of(self._stack[:1]))

    @property
    def is_of_ours(self) -> bool:
        """Whether dtypeguard made it, for the line of the user's that called it."""
        return any(is_ours(frame.file) for frame in self._inside)

    @property
    def is_explicit(self) -> bool:
        """Whether the user asked for a conversion, with `astype`, `asarray` or the like."""
        called = [frame.function for frame in self._inside_own]
        # The function that the user called comes last, possibly behind wrappers of JAX.
        is_cast = not CASTS.isdisjoint(called[-6:])
        return is_cast and not any(map(PROMOTING.are_in, called))

    @property
    def is_backward(self) -> bool:
        """Whether it belongs to the backward pass of a gradient.

        What `jax.checkpoint` computes again there belongs to the forward pass.
        """
        scopes = list(map(scopes_of, self._stack))
        is_repeated = any(
            outer.primitive.name in REPEATING and inner and inner[0].name == REPEATED
            for inner, outer in zip(scopes, self._stack[1:])
        )
        every = itertools.chain.from_iterable(scopes)
        is_transposed = lambda x: type(x).__name__ == "Transform" and x.name == TRANSPOSED
        return any(map(is_transposed, every)) and not is_repeated

    @property
    def is_of_jax_nn(self) -> bool:
        """Whether a function of `jax.nn` computes it for the user's line."""
        return any(frame.file == _JAX_NN for frame in self._inside)

    @property
    def is_of_sampler(self) -> bool:
        """Whether a function of `jax.random` computes it for the user's line."""
        return any(frame.file == _JAX_RANDOM for frame in self._inside)

    @property
    def _inside(self) -> Iterator[Frame]:
        """The frames inside the innermost line of the user's."""
        return until_users(frames_of(self._stack))

    @property
    def _inside_own(self) -> Iterator[Frame]:
        """Those of the equation itself."""
        return until_users(frames_of(self._stack[:1]))


_JAX_RANDOM = inspect.unwrap(jax.random.normal).__code__.co_filename
_JAX_NN = inspect.unwrap(jax.nn.softmax).__code__.co_filename
