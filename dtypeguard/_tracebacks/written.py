"""The source of an equation: its line, its calls, what they ask for."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

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
    """The source of an equation: its line, the calls that lead there, what they ask for.

    Args:
        stack: the equation and those that contain it, inside out. JAX's own functions are
            skipped in favor of their callers.
    """

    __slots__ = ("_stack",)

    def __init__(self, stack: Sequence[Equation]):
        self._stack = stack

    @property
    def origin(self) -> Origin | None:
        """The innermost line outside JAX and dtypeguard."""
        return origin_of_frames(frames_of(self._stack))

    @property
    def calls(self) -> Chain:
        """The calls that lead to the line of `origin`, inside out; () if not known.

        They tell apart the calls on a line, and those of a function that contains it.
        """
        for calls in calls_by_jaxpr(self._stack):
            if calls:
                return calls
        return ()

    @property
    def scope(self) -> tuple[str, ...]:
        """The scopes of `jax.named_scope` around it, outside in.

        Flax and Haiku name the modules so, and `einsum` what it computes, which is none.
        """
        names = []
        for equation in reversed(self._stack):
            for scope in scopes_of(equation):
                if type(scope).__name__ == "Scope" and _is_of_users(scope.name):
                    names.append(scope.name)
        return tuple(names)

    @property
    def cast_of_ours(self) -> Cast | None:
        """The cast of dtypeguard around it; None if there is none."""
        for equation in self._stack:
            for scope in reversed(scopes_of(equation)):
                if isinstance(scope.name, Cast):
                    return scope.name
        return None

    @property
    def is_of_users(self) -> bool:
        """Whether a line outside JAX made it itself, and no jitted function of JAX."""
        return any(is_users(frame.file) for frame in frames_of(self._stack[:1]))

    @property
    def is_of_ours(self) -> bool:
        """Whether dtypeguard made it, for a line of the user's."""
        return any(is_ours(frame.file) for frame in self._inner_frames)

    @property
    def is_explicit(self) -> bool:
        """Whether the user asked for a conversion, with `astype`, `asarray` or the like."""
        frames = until_users(frames_of(self._stack[:1]))
        functions = [frame.function for frame in frames]
        # The function that the user called comes last, possibly behind wrappers of JAX.
        is_cast = not CASTS.isdisjoint(functions[-6:])
        return is_cast and not any(map(PROMOTING.are_in, functions))

    @property
    def is_backward(self) -> bool:
        """Whether it belongs to the backward pass of a gradient.

        What `jax.checkpoint` computes again there belongs to the forward pass.
        """
        is_transposed = False
        outer_equations = [*self._stack[1:], None]
        for equation, outer in zip(self._stack, outer_equations):
            scopes = scopes_of(equation)
            is_in_checkpoint = outer is not None and outer.primitive.name in REPEATING
            if is_in_checkpoint and scopes and scopes[0].name == REPEATED:
                return False
            is_transposed = is_transposed or any(map(_is_transposition, scopes))
        return is_transposed

    @property
    def is_of_jax_nn(self) -> bool:
        """Whether a function of `jax.nn` computes it for the user's line."""
        return any(frame.file == _JAX_NN for frame in self._inner_frames)

    @property
    def is_of_sampler(self) -> bool:
        """Whether a function of `jax.random` computes it for the user's line."""
        return any(frame.file == _JAX_RANDOM for frame in self._inner_frames)

    @property
    def _inner_frames(self) -> Iterator[Frame]:
        """The frames inside the innermost line of the user's."""
        return until_users(frames_of(self._stack))


def _is_of_users(name: object) -> bool:
    is_of_ours = isinstance(name, Cast)
    return not is_of_ours and name != REPEATED and "->" not in str(name)


def _is_transposition(scope: Any) -> bool:
    return type(scope).__name__ == "Transform" and scope.name == TRANSPOSED


_JAX_RANDOM = inspect.unwrap(jax.random.normal).__code__.co_filename
_JAX_NN = inspect.unwrap(jax.nn.softmax).__code__.co_filename
