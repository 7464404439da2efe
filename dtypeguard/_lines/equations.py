"""What the source says of an equation: its line, its calls, what they ask for."""

import ast
import inspect
import itertools
from collections.abc import Iterator, Sequence

import jax

from .._leaves.casts import Cast
from .._leaves.dtypes import bits
from .._leaves.internals import (
    CASTS,
    COMMON_DTYPE,
    PROMOTING,
    REPEATED,
    REPEATING,
    TRANSPOSED,
)
from .._leaves.types import Equation
from .._source.files import is_ours, is_users
from .._source.origin import Frame, Origin, origin_of_frames
from .._source.syntax import CASTING, assigned_value, expression
from .tracebacks import (
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
    def is_asked(self) -> bool:
        """Whether the user asked for this dtype, whatever dtype other values have."""
        return self.is_explicit and not self.is_following

    @property
    def is_following(self) -> bool:
        """Whether a cast takes the dtype of another value, as `x.astype(y.dtype)` does."""
        if self.is_of_ours:
            return False
        if self._is_to_common_dtype:
            equation = self._stack[0]
            given, made = (x[0].aval.dtype for x in (equation.invars, equation.outvars))
            # What is common to values is not narrower; to the same dtype it is asked for.
            return bits(given) < bits(made)
        written = ((expression(*x), x[0].co_filename) for x in self.calls[:1])
        return any(isinstance(x, ast.Call) and _follows(x, file) for x, file in written)

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

    @property
    def _is_to_common_dtype(self) -> bool:
        calls = self.calls[:2]  # a function, and the one that it may be written in
        return any(code is known for code, _ in calls for known in COMMON_DTYPE.codes())


def _follows(call: ast.Call, file: str) -> bool:
    """Whether a call is `x.astype(y.dtype)`, or `asarray(x, dtype)` with such a dtype."""
    if _last_name(call.func) not in CASTING:
        return False
    for given in (*call.args, *(each.value for each in call.keywords)):
        if isinstance(given, ast.Name):  # what was assigned to it, if that is certain
            given = assigned_value(file, given.id, call.lineno)
        if isinstance(given, ast.Attribute) and given.attr == "dtype":
            return True
        if isinstance(given, ast.Call) and _last_name(given.func) in _OF_VALUES:
            return True
    return False


# Functions of JAX and Flax that return the dtype that arrays have in common.
_OF_VALUES = ("result_type", "promote_types", "canonicalize_dtype")


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


_JAX_RANDOM = inspect.unwrap(jax.random.normal).__code__.co_filename
_JAX_NN = inspect.unwrap(jax.nn.softmax).__code__.co_filename
