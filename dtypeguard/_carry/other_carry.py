"""Which other argument a step's result looks like, where the wrong one is carried."""

import inspect
from typing import Any

from .carry import Carry
from .places import BY_NAME
from .returned import Items, is_alike


def other_carry(
    carry: Carry, step: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> str:
    """What to write if another argument comes back than the first.

    A body of `fori_loop` takes the index first, and many an environment a random key: the
    error about those leaves says nothing of the argument that was meant.

    Args:
        carry: what comes back, as `guard_step` was told.
        step: the step.
        args: what it was called with.
        kwargs: what it was called with by name.
        result: all that it returned.

    Returns:
        A line for the end of the message; "" where items were named with `returned`, where
        the result looks like the carry, or where it looks like no other argument.
    """
    if not carry.is_one or carry.returned is not None:
        return ""
    owner, (place,) = carry.owner, carry.places
    items = Items(result)
    candidates = [(None, result), *zip(items.keys, items.values)]
    looks = lambda value: [key for key, item in candidates if is_alike(value, item)]
    if looks(place.take(args, kwargs)):
        return ""
    for name, value in _named(step, args, kwargs).items():
        found = looks(value)
        if name != place.label and found:
            key = found[0]
            is_first = key == 0 and isinstance(result, (tuple, list))
            returned = "" if key is None or is_first else f", returned={key!r}"
            return (
                f"\nIf the step carries {name}, which its result looks like, and not "
                f"{place.label}: write {owner}(..., carry={name!r}{returned})."
            )
    return ""


def _named(step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call that `carry` can name."""
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):  # some that are written in C hide it
        return {}
    given = signature.bind(*args, **kwargs).arguments
    return {k: v for k, v in given.items() if signature.parameters[k].kind in BY_NAME}
