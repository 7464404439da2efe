"""The parameters of a step, and the arguments among them that come back."""

import dataclasses
import functools
import inspect
from typing import NamedTuple

from jax import tree_util

from .._leaves.arguments import shown
from .._leaves.types import Args, Kwargs, PyTree, Step

_Parameter = inspect.Parameter
_VARIADIC = (_Parameter.VAR_POSITIONAL, _Parameter.VAR_KEYWORD)


class Place(NamedTuple):
    """One argument: `params`, or `args[2]` if it has no name of its own."""

    label: str
    position: int | None  # None: keyword-only
    default: PyTree = _Parameter.empty

    def take(self, args: Args, kwargs: Kwargs) -> PyTree:
        """Returns the argument of a call, or its default: maybe `Parameter.empty`."""
        size = len(args)
        if self.position is not None and self.position < size:
            return args[self.position]
        return kwargs.get(self.label, self.default)

    def put(self, args: list[PyTree], kwargs: dict[str, PyTree], value: PyTree) -> None:
        """Replaces the argument in a call."""
        size = len(args)
        if self.position is not None and self.position < size:
            args[self.position] = value
        else:
            kwargs[self.label] = value


class Names:
    """The parameters of a step."""

    def __init__(self, step: Step):
        self.step = _step_name(step)
        try:
            self.signature = _signature(step)
        except (TypeError, ValueError, RecursionError):  # a C function; wraps itself
            self.signature = inspect.signature(lambda *args, **kwargs: None)
        self._places: dict[str, Place] = {}
        self._variadic_names = {}
        self.by_position = []
        parameters = self.signature.parameters.values()
        for i, parameter in enumerate(parameters):
            name = parameter.name
            if parameter.kind in _VARIADIC:
                self._variadic_names[parameter.kind] = name
                continue
            # Those by position come first, so that their number is their position.
            position = None
            if parameter.kind is not _Parameter.KEYWORD_ONLY:
                position = i
                self.by_position.append(name)
            self._places[name] = Place(name, position, parameter.default)
        # A decorator sees a method before it is bound.
        first_names = self.by_position[:1]
        is_method = first_names in (["self"], ["cls"])
        self._first = 1 if is_method else 0

    def at(self, position: int) -> str:
        """Returns the name of the argument at a position."""
        num_named = len(self.by_position)
        if position < num_named:
            return self.by_position[position]
        variadic_name = self._variadic_names.get(_Parameter.VAR_POSITIONAL, "args")
        index = position - num_named
        return f"{variadic_name}[{index}]"

    def places(
        self,
        owner: str,
        carry: int | str | tuple[int | str, ...],
    ) -> tuple[Place, ...]:
        """Returns the arguments that `carry` names, by position or name.

        Positions do not count a first parameter called `self` or `cls`, unless it is the
        only one: so the decorator works on a method, above or below `jit`.
        """
        keys = carry if isinstance(carry, tuple) else (carry,)
        if not keys:
            raise self._no_such_argument(owner, carry)
        places: dict[str, Place] = {}
        for key in keys:
            place = self._place(key)
            if place is None or place.label in places:
                raise self._no_such_argument(owner, key)
            places[place.label] = place
        return tuple(places.values())

    def _no_such_argument(self, owner: str, key: object) -> ValueError:
        return ValueError(
            f"{owner} got carry={shown(key)}, but {self.step} takes "
            f"{self.signature}. Write the position or the name of the argument "
            'that comes back, or a tuple of them: carry=0, carry="state", '
            'carry=("params", "opt_state").'
        )

    def _place(self, key: object) -> Place | None:
        """Returns the argument with a name or at a position; None if there is none."""
        if isinstance(key, str):
            place = self._places.get(key)
            if place is None and _Parameter.VAR_KEYWORD in self._variadic_names:
                return Place(key, None)
            return place
        # True is an int, and never a position.
        if type(key) is not int or key < 0:
            return None
        num_named = len(self.by_position)
        position = key + self._first
        if key == 0 and num_named == self._first:
            position = 0  # `self` alone
        name = self.at(position)
        if position < num_named:
            return self._places[name]
        if _Parameter.VAR_POSITIONAL in self._variadic_names:
            return Place(name, position)  # one of `*args`
        return None


def _step_name(step: Step) -> str:
    """Returns the name of a step in messages: its own, or that of its type."""
    inner = getattr(step, "func", step)  # of a partial function
    while isinstance(inner, functools.partial):
        inner = inner.func
    class_name = type(inner).__name__
    name = getattr(inner, "__name__", class_name)
    if name == "<lambda>":
        return "step"
    return name


def _signature(step: Step) -> inspect.Signature:
    """Returns the signature of a callable; of a wrapper its own, unless it passes all on.

    `inspect` follows `__wrapped__` even where a wrapper takes other arguments. It passes
    its arguments on if it has `*args` or `**kwargs`, and its parameters by position are the
    first ones of the function inside.
    """
    inner = getattr(step, "__wrapped__", None)
    if inner is None or inspect.ismethod(step):
        return inspect.signature(step)
    call = step if inspect.isfunction(step) else step.__call__  # also of what `jit` returns
    # The wrapper's own one, which `functools.wraps` hides.
    signature = inspect.signature(call, follow_wrapped=False)
    is_variadic = False
    names = []
    for parameter in signature.parameters.values():
        if parameter.kind in _VARIADIC:
            is_variadic = True
        elif parameter.kind is not _Parameter.KEYWORD_ONLY:
            names.append(parameter.name)
    inner_signature = _signature(inner)
    inner_names = list(inner_signature.parameters)
    num_names = len(names)
    if is_variadic and inner_names[:num_names] == names:
        return inner_signature
    return signature


def is_unregistered(value: object) -> bool:
    """Returns whether a value is a dataclass that JAX treats as a leaf."""
    # JAX would trace it as one leaf, and fail on that with no word of the remedy.
    if isinstance(value, type):
        return False
    if not dataclasses.is_dataclass(value):
        return False
    return tree_util.all_leaves([value])
