"""The arguments of a step that are carried: their positions and names."""

import inspect
from typing import NamedTuple

from .._leaves.arguments import shown
from .._leaves.types import Args, Kwargs, PyTree, Step

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NONE = inspect.Parameter.empty


class Place(NamedTuple):
    """One argument: `params`, or `args[2]` if it has no name of its own."""

    label: str
    position: int | None  # None: keyword-only
    name: str | None  # None: positional-only
    default: PyTree = _NONE

    def take(self, args: Args, kwargs: Kwargs) -> PyTree:
        """The argument in a call, or its default, which may be `Parameter.empty`."""
        if self.position is not None and self.position < len(args):
            return args[self.position]
        return self.default if self.name is None else kwargs.get(self.name, self.default)

    def put(self, args: list[PyTree], kwargs: dict[str, PyTree], value: PyTree) -> None:
        """Replaces the argument in a call."""
        if self.position is not None and self.position < len(args):
            args[self.position] = value
        elif self.name is not None:
            kwargs[self.name] = value


class Names(NamedTuple):
    """The names of the arguments of a step, by position.

    Attributes:
        by_position: the parameters before a variadic one.
        rest: the variadic one, or None.
    """

    by_position: tuple[str, ...]
    rest: str | None

    @classmethod
    def of(cls, step: Step) -> "Names":
        """The names for any callable."""
        try:
            parameters = inspect.signature(step).parameters.values()
        except (TypeError, ValueError):  # some C functions have no signature
            return cls((), "args")
        by_position, _ = _by_position(list(parameters))
        rest = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
        return cls(tuple(p.name for p in by_position), rest[0] if rest else None)

    def at(self, position: int) -> str:
        """The name of the argument at a position."""
        if position < len(self.by_position):
            return self.by_position[position]
        return f"{self.rest or 'args'}[{position - len(self.by_position)}]"


def places_of(
    owner: str, step: Step, carry: int | str | tuple[int | str, ...]
) -> tuple[Place, ...]:
    """The arguments of a step that `carry` names.

    Args:
        owner: the public function that asks, for messages.
        step: any callable.
        carry: a position or name, or a tuple of them. Positions do not count a first
            parameter called `self` or `cls`, unless it is the only one: so the decorator
            works on a method, above or below `jit`.

    Raises:
        TypeError: if `carry` has the wrong type.
        ValueError: if the step has no such argument, or one is named twice.
    """
    asked = carry if isinstance(carry, tuple) else (carry,)
    is_number = lambda key: isinstance(key, int) and not isinstance(key, bool)
    if not asked or not all(isinstance(key, str) or is_number(key) for key in asked):
        raise TypeError(
            f"{owner} got carry={shown(carry)}. Write the position or the name of the "
            'argument that comes back, or a tuple of them: carry=0, carry="state", '
            'carry=("params", "opt_state").'
        )
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):  # some C functions have no signature
        signature = None
    places = []
    for key in asked:
        place = _place(signature, key)
        if place is None:
            raise ValueError(_unknown(owner, step, signature, key))
        places.append(place)
    labels = [place.label for place in places]
    if len(set(labels)) < len(labels):
        raise ValueError(
            f"{owner} got carry={shown(carry)}, which names an argument twice: "
            f"{', '.join(labels)}. Name each once."
        )
    return tuple(places)


def name_of_step(step: Step) -> str:
    """The name of a step in messages: its own, or that of its type."""
    inner = getattr(step, "func", step)  # of a functools.partial
    name = getattr(inner, "__name__", type(inner).__name__)
    return "step" if name == "<lambda>" else name


def _place(signature: inspect.Signature | None, key: int | str) -> Place | None:
    """The argument at a position or with a name; None if there is none."""
    if isinstance(key, int) and key < 0:
        return None
    if signature is None:
        return Place(key, None, key) if isinstance(key, str) else _unnamed("args", key, 0)
    parameters = list(signature.parameters.values())
    by_position, first = _by_position(parameters)
    if isinstance(key, str):
        found = signature.parameters.get(key)
        if found is not None and found.kind in (*_BY_POSITION, *BY_NAME):
            return _named(found, by_position)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        return Place(key, None, key) if takes_any else None
    if key == 0 and by_position and len(by_position) == first:
        return _named(by_position[0], by_position)  # a method that takes nothing else
    key += first
    if key < len(by_position):
        return _named(by_position[key], by_position)
    rest = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    return _unnamed(rest[0], key, len(by_position)) if rest else None


def _by_position(
    parameters: list[inspect.Parameter],
) -> tuple[list[inspect.Parameter], int]:
    """The positional parameters, and the index of the first one that counts."""
    found = [p for p in parameters if p.kind in _BY_POSITION]
    return found, int(bool(found) and found[0].name in ("self", "cls"))


def _named(parameter: inspect.Parameter, by_position: list[inspect.Parameter]) -> Place:
    position = by_position.index(parameter) if parameter in by_position else None
    name = parameter.name if parameter.kind in BY_NAME else None
    return Place(parameter.name, position, name, parameter.default)


def _unnamed(rest: str, position: int, start: int) -> Place:
    return Place(f"{rest}[{position - start}]", position, None)


def _unknown(
    owner: str, step: Step, signature: inspect.Signature | None, key: int | str
) -> str:
    text = f"{owner} got carry={key!r}, "
    if signature is None:
        return f"{text}which is no position. Write that of the carry, such as carry=0."
    parameters = list(signature.parameters.values())
    by_position, first = _by_position(parameters)
    names = [p.name for p in by_position[first:]]
    choices = [f'carry={number} or "{name}"' for number, name in enumerate(names)]
    choices += [f'carry="{p.name}"' for p in parameters if p.kind is p.KEYWORD_ONLY]
    what = f"takes {signature}" if choices else "takes no arguments"
    write = "one of " if len(choices) > 1 else ""
    remedy = f"Write {write}{', '.join(choices)}." if choices else "A step takes its carry."
    return f"{text}but {name_of_step(step)} {what}. {remedy}"
