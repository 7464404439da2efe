"""Which arguments of a step are carried: where they stand and what they are called."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from .._leaves.arguments import short

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NONE = inspect.Parameter.empty


class Place(NamedTuple):
    """One argument: `params`, or `args[2]` where it has no name of its own."""

    label: str
    position: int | None  # None: it is given by name alone
    name: str | None  # None: it is given by position alone
    default: Any = _NONE

    def take(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What a call gives for it, or its default, which may be `Parameter.empty`."""
        if self.position is not None and self.position < len(args):
            return args[self.position]
        return self.default if self.name is None else kwargs.get(self.name, self.default)

    def put(self, args: list[Any], kwargs: dict[str, Any], value: Any) -> None:
        """Gives a call another value for it."""
        if self.position is not None and self.position < len(args):
            args[self.position] = value
        elif self.name is not None:
            kwargs[self.name] = value


def places_of(
    step: Any, carry: int | str | tuple[int | str, ...], owner: str, offset: int = 0
) -> tuple[Place, ...]:
    """The arguments of a step that `carry` names.

    Args:
        step: any callable.
        carry: a position or name, or a tuple of them.
        owner: who asks: what the messages say to write.
        offset: what a position counts from; 1 for a method that is not bound.

    Raises:
        TypeError: if `carry` is nothing of the kind.
        ValueError: if the step has no such argument, or one is named twice.
    """
    asked = carry if isinstance(carry, tuple) else (carry,)
    is_number = lambda key: isinstance(key, int) and not isinstance(key, bool)
    if not asked or not all(isinstance(key, str) or is_number(key) for key in asked):
        raise TypeError(
            f"{owner} got carry={short(carry)}. Write the position or the name of the "
            'argument that comes back, or a tuple of them: carry=0, carry="state", '
            'carry=("params", "opt_state").'
        )
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):  # some that are written in C hide it
        signature = None
    places = []
    for key in asked:
        place = _place(signature, key + offset if isinstance(key, int) else key)
        if place is None or (isinstance(key, int) and key < 0):
            raise ValueError(_unknown(step, signature, key, owner, offset))
        places.append(place)
    labels = [place.label for place in places]
    if len(set(labels)) < len(labels):
        raise ValueError(
            f"{owner} got carry={short(carry)}, which names an argument twice: "
            f"{', '.join(labels)}. Name each once."
        )
    return tuple(places)


def name_of_step(step: Any) -> str:
    """What a step is called in messages: by its own name, or its type's."""
    inner = getattr(step, "func", step)  # of a functools.partial
    name = getattr(inner, "__name__", type(inner).__name__)
    return "step" if name == "<lambda>" else name


def _place(signature: inspect.Signature | None, key: int | str) -> Place | None:
    """The argument at a position or of a name; None where there can be none."""
    if signature is None:
        return Place(key, None, key) if isinstance(key, str) else _unnamed("args", key, 0)
    parameters = list(signature.parameters.values())
    by_position = [p for p in parameters if p.kind in _BY_POSITION]
    if isinstance(key, str):
        found = signature.parameters.get(key)
        if found is not None and found.kind in (*_BY_POSITION, *_BY_NAME):
            return _named(found, by_position)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        return Place(key, None, key) if takes_any else None
    if key < len(by_position):
        return _named(by_position[key], by_position)
    rest = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    return _unnamed(rest[0], key, len(by_position)) if rest else None


def _named(parameter: inspect.Parameter, by_position: list[Any]) -> Place:
    position = by_position.index(parameter) if parameter in by_position else None
    name = parameter.name if parameter.kind in _BY_NAME else None
    return Place(parameter.name, position, name, parameter.default)


def _unnamed(rest: str, position: int, start: int) -> Place:
    return Place(f"{rest}[{position - start}]", position, None)


def _unknown(
    step: Any, signature: inspect.Signature | None, key: int | str, owner: str, offset: int
) -> str:
    text = f"{owner} got carry={key!r}, "
    if signature is None:
        return (
            f"{text}which is no position. Write the position of the carry, such as carry=0."
        )
    parameters = list(signature.parameters.values())
    by_position = [p.name for p in parameters if p.kind in _BY_POSITION][offset:]
    choices = [f'carry={number} or "{name}"' for number, name in enumerate(by_position)]
    choices += [f'carry="{p.name}"' for p in parameters if p.kind is p.KEYWORD_ONLY]
    what = f"takes {signature}" if choices else "takes no arguments"
    write = "one of " if len(choices) > 1 else ""
    remedy = f"Write {write}{', '.join(choices)}." if choices else "A step takes its carry."
    return f"{text}but {name_of_step(step)} {what}. {remedy}"
