"""The source of an equation: its line, its calls, what they ask for."""

import inspect
from collections.abc import Sequence
from typing import Any

import jax

from .._leaves.casts import Cast
from .._leaves.internals import (
    CASTS,
    PROMOTING,
    REPEATED,
    TRANSPOSED,
)
from .._leaves.types import Equation
from .._source.files import is_ours, is_users
from .._source.origin import Origin, origin_of_frames
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
                if _is_scope_of_users(scope):
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
        frames = frames_of(self._stack[:1])
        return any(is_users(frame.file) for frame in frames)

    @property
    def is_of_ours(self) -> bool:
        """Whether dtypeguard made it, for a line of the user's."""
        return any(map(is_ours, self._inner_files))

    @property
    def is_explicit(self) -> bool:
        """Whether the user asked for a conversion, with `astype`, `asarray` or the like."""
        frames = until_users(frames_of(self._stack[:1]))
        functions = [frame.function for frame in frames]
        # The function that the user called comes last, possibly behind wrappers of JAX.
        is_cast = not CASTS.isdisjoint(functions[-6:])
        # `x + y` casts as well, as no user has asked for.
        is_promotion = any(map(PROMOTING.are_in, functions))
        return is_cast and not is_promotion

    @property
    def is_backward(self) -> bool:
        """Whether it belongs to the backward pass of a gradient.

        What `jax.checkpoint` computes again there belongs to the forward pass.
        """
        scopes = []
        for equation in self._stack:
            scopes_of_equation = scopes_of(equation)
            # In the body of a checkpoint, the first scope tells both passes apart.
            if scopes_of_equation and scopes_of_equation[0].name == REPEATED:
                return False
            scopes += scopes_of_equation
        return any(map(_is_transposition, scopes))

    @property
    def is_of_jax_nn(self) -> bool:
        """Whether a function of `jax.nn` computes it for the user's line."""
        return _JAX_NN in self._inner_files

    @property
    def is_of_sampler(self) -> bool:
        """Whether a function of `jax.random` computes it for the user's line."""
        return _JAX_RANDOM in self._inner_files

    @property
    def _inner_files(self) -> set[str]:
        """The files that run inside the innermost line of the user's."""
        frames = frames_of(self._stack)
        return {frame.file for frame in until_users(frames)}


def _is_scope_of_users(scope: Any) -> bool:
    # By its name: JAX has no public class of a scope.
    is_scope = type(scope).__name__ == "Scope"
    is_of_ours = isinstance(scope.name, Cast)
    is_of_einsum = "->" in str(scope.name)
    return is_scope and not is_of_ours and not is_of_einsum and scope.name != REPEATED


def _is_transposition(scope: Any) -> bool:
    return type(scope).__name__ == "Transform" and scope.name == TRANSPOSED


_JAX_RANDOM = inspect.unwrap(jax.random.normal).__code__.co_filename
_JAX_NN = inspect.unwrap(jax.nn.softmax).__code__.co_filename
