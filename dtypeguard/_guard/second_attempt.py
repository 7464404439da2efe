"""Runs a call that raises over types once more, in another way."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from .._leaves.compat import PromotionError
from .._leaves.errors import DtypeDriftError, first_line_of, more

_T = TypeVar("_T")

ERRORS_OF_TYPES = (TypeError, PromotionError)


class SecondAttempt(NamedTuple, Generic[_T]):
    """Another way to run a call that raised."""

    run: Callable[[], _T]  # returns anything but None
    description: str  # of the way, for the warning that it was taken
    page: str  # of the docs


def run_or_try_again(
    run: Callable[[], _T],
    second_attempt: Callable[[], SecondAttempt[_T] | None],
    warn: Callable[[str], None],
) -> _T:
    """Runs a call and, if it raises over types, a second attempt.

    Args:
        run: the call.
        second_attempt: returns the second attempt; None if there is none.
        warn: issues a warning.
    """
    try:
        return run()
    except DtypeDriftError:
        raise  # a guard inside has made its own attempts
    except ERRORS_OF_TYPES as error:
        attempt = second_attempt()
        if attempt is None:
            raise
        try:
            result = attempt.run()
        except Exception:
            # The first error tells the user more: it is about the user's own dtypes.
            result = None
        if result is None:
            raise
        reason = first_line_of(error)
        page = more(attempt.page)
        warn(f"{attempt.description}: {reason}{page}")
        return result
