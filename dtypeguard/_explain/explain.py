"""A context in which JAX's type errors name the lines of source they come from."""

import contextlib
from types import TracebackType
from typing import TypeVar, overload

from .._blame.provenance import TRACES_SO_FAR
from .._leaves.arguments import runs_later, shown
from .._leaves.compat import check_release
from .._leaves.quiet import warnings_ignored
from .._leaves.types import Function, public
from .._recording.monitored import RECORD
from .arguments import find_arguments, find_checked
from .choose import choose
from .compiled import find_in_compiled
from .control_flow import find_in_control_flow
from .derivatives import find_cotangents
from .finding import Failure, Finding
from .messages import complaint, complaint_of_a_package
from .text import noted, text_of
from .unfiltered import UNFILTERED, hide_jax, printed

_F = TypeVar("_F", bound=Function)


@overload
def explain(function: None = None, *, all: bool = False) -> "_Explaining": ...
@overload
def explain(function: _F, *, all: bool = False) -> _F: ...
@public
def explain(
    function: Function | None = None, *, all: bool = False
) -> "Function | _Explaining":
    """A context in which JAX's type errors name your lines.

    If types differ in `jax.lax.scan`, `while_loop`, `fori_loop`, `cond`, `switch` or
    Equinox's loops, the error gets a note: the leaves of each cause with their types, the
    line that promoted them, the line that forced it, and what to write. If JAX refuses the
    types of the arguments of one of its functions, the note has every argument by its name
    with its type, these two lines, and the cast to write. The error stays the same object
    with the same message; Python prints the note below it. All other errors pass untouched.
    `@dtypeguard.explain` does the same as a decorator.

    Inside the context JAX's option `jax_traceback_filtering` is "off", in all threads,
    because the notes come from JAX's own frames. An error that leaves the context has
    them filtered out again. From Python 3.12 on, the lines that make arrays are recorded
    from the entry of the context on, for the lines of constants and arguments. Nothing else
    changes.

    A note fits on a screen: leaves that share a cause share a row, and five causes are
    listed. `error.dtypeguard_rows` has every leaf: its `path`, `branch` and `types`, and
    the lines `origin`, `cause` and `begun`.

    Args:
        function: omitted for a context; for a decorator, the function to decorate.
        all: whether a note lists every leaf.

    Returns:
        A context manager, reusable and reentrant; or the function, which then runs in one.

    Raises:
        TypeError: if `function` is not callable, or if its body runs after the call, like
            that of a generator or a coroutine.
        NotImplementedError: before JAX 0.8.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp
        >>> def body(carry, x):
        ...     return carry * x, None
        >>> try:
        ...     with dtypeguard.explain():
        ...         jax.lax.scan(body, jnp.ones(3, jnp.bfloat16), jnp.ones((2, 3)))
        ... except TypeError as error:
        ...     print(error.__notes__[-1].splitlines()[0])
        dtypeguard: 1 leaf of the carry of scan comes back in another type.
    """
    check_release("explain")
    if function is None:
        return _Explaining(all)
    return _Explaining(all)(function)


class _Explaining(contextlib.ContextDecorator):
    def __init__(self, is_whole: bool):
        self._is_whole = is_whole

    def __enter__(self) -> None:
        UNFILTERED.enter()
        RECORD.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        UNFILTERED.leave()
        # The record is read while it is open: its numbers are forgotten with it.
        try:
            if isinstance(error, Exception):
                explain_error(error, self._is_whole)
                hide_jax(error)
        finally:
            RECORD.__exit__(None, None, None)

    def __call__(self, function: _F) -> _F:
        if not callable(function) or runs_later(function):
            raise TypeError(
                f"explain got {shown(function)}. Write `with dtypeguard.explain():` around "
                "the loop; inside of a body that runs only after it has been called."
            )
        return super().__call__(function)


def explain_error(error: BaseException, is_whole: bool = False, hint: str = "") -> None:
    """Adds notes to an error, its causes and the members of its groups.

    Args:
        error: any.
        is_whole: whether a note lists every leaf.
        hint: a sentence for notes in which the line of a value is missing.
    """
    for part in printed(error):
        if isinstance(part, Exception) and not hasattr(part, "dtypeguard_rows"):
            # Better no note than another error, and than a warning of what is looked at.
            with contextlib.suppress(Exception), warnings_ignored():
                _explain_part(part, is_whole, hint)
    TRACES_SO_FAR.clear()


def _explain_part(error: BaseException, is_whole: bool, hint: str) -> None:
    failure = Failure(error)
    finding = _finding(failure)
    if finding is not None:
        advice = choose(finding, failure.sites)
        error.add_note(text_of(finding, advice, is_whole, hint))
        error.dtypeguard_rows = noted(finding)  # pyright: ignore[reportAttributeAccessIssue]: an error takes any


def _finding(failure: Failure) -> Finding | None:
    """Returns what to say of an error; None if no leaf is at fault."""
    # A rule of a derivative raises nothing itself: JAX does, where it adds up.
    finding = find_cotangents(failure)
    about = complaint(failure.message)
    # The words of the table are about arguments, whatever loop the error passed through.
    if about is not None:
        return finding or find_arguments(failure, about)
    finding = finding or find_in_compiled(failure) or find_in_control_flow(failure)
    if finding or failure.is_of_jax or failure.is_runtime_error:
        return finding
    # Any message may name dtypes: last, and only if another library has raised it.
    about = complaint_of_a_package(failure.message)
    if about is None:
        return None
    return find_checked(failure, about)
