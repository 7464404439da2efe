"""Asks about callables: which parameters they have, whether they are transformations."""

import functools
import inspect
from collections.abc import Mapping
from types import CellType, FunctionType
from typing import Any

from .types import Function


def is_transformation(thing: object) -> bool:
    """Whether a thing has the two functions of a gradient transformation."""
    return callable(getattr(thing, "init", None)) and callable(
        getattr(thing, "update", None)
    )


def runs_later(function: object) -> bool:
    """Whether a call returns before the body runs: a generator or a coroutine."""
    kinds = (
        inspect.isgeneratorfunction,
        inspect.iscoroutinefunction,
        inspect.isasyncgenfunction,
    )
    return any(kind(function) for kind in kinds)


def parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters by name, except variadic ones; empty if there is no signature."""
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in found.items() if p.kind not in variadic}


def required(function: Function) -> list[str]:
    """The names of the parameters without a default."""
    return [name for name, p in parameters(function).items() if p.default is p.empty]


def copy_of(
    function: FunctionType, without: str = "", closure: tuple[CellType, ...] | None = None
) -> FunctionType:
    """A function with the code and the attributes of another, one of these left out."""
    made = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__ if closure is None else closure,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(made, function)
    # Without a `__wrapped__` of its own.
    made.__dict__ = {k: v for k, v in vars(function).items() if k != without}
    return made
