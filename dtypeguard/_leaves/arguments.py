"""Checks arguments, and asks about callables: what they are, what they take."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import jax
import numpy as np
from jax import tree_util

from .dtypes import dtype_of, kind
from .key_path import by_path, path_text
from .leaf_type import type_or_class
from .types import Function, Leaf, Optimizer, PyTree


def check_number(
    owner: str, name: str, value: Leaf, is_allowed: Callable[[float], bool], remedy: str
) -> None:
    """Checks that a value is a scalar number, and that its value is allowed.

    A JAX array may be any number: it may be traced, and a check would wait for a device.
    """
    if kind(dtype_of(value)) not in ("int", "float") or np.ndim(value) > 0:
        raise TypeError(f"{owner} got {name}={shown(value)}: {remedy}.")
    if isinstance(value, jax.Array):
        return
    # To compare in a narrow dtype would round the bound.
    number = float(value)
    if not is_allowed(number):
        raise ValueError(f"{owner} got {name}={value}: {remedy}.")


def is_subtree(value: PyTree) -> bool:
    """Returns whether a value in the place of a leaf is a tree of its own, and not None."""
    if value is None:
        return False
    return not tree_util.all_leaves([value])


def check_leaves(
    takes: str, name: str, tree: PyTree, is_right: Callable[[Leaf], bool], remedy: str
) -> None:
    """Raises a `TypeError` that lists the leaves for which `is_right` is false."""
    lines = []
    for path, leaf in by_path(tree, name).items():
        if is_right(leaf):
            continue
        text = type_or_class(leaf)
        if dtype_of(leaf) is None:
            text = shown(leaf)
        lines.append(f"  {path_text(path)}: {text}")
    if lines:
        headline = f"{takes}; these are not:"
        message = [headline, *lines, remedy]
        raise TypeError("\n".join(message))


def check_arrays(owner: str, name: str, tree: PyTree) -> None:
    """Checks that each leaf of a tree is an array or stands for one."""

    def is_array_like(leaf):
        if dtype_of(leaf) is None:
            return hasattr(leaf, "dtype")
        return True

    takes = f"{owner} takes arrays or jax.ShapeDtypeStructs for {name}"
    remedy = f"Write eqx.filter({name}, eqx.is_array) or None in their place."
    check_leaves(takes, name, tree, is_array_like, remedy)


def checked_names(owner: str, name: str, value: object) -> dict[str, Any]:
    """Returns `extra_args` or `kwargs` as a dict; raises if a key is no string."""
    if value is None:
        return {}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise TypeError(
        f"{owner} got {name}={shown(value)}. Write a dict of arguments by name, such as "
        f'{name}={{"value": loss}}.'
    )


def shown(value: object) -> str:
    """Returns the repr of a value on one line, cut at 80 characters."""
    # The repr of an array has lines of its own.
    text = " ".join(repr(value).split())
    if len(text) > 80:
        return f"{text[:77]}..."
    return text


def is_transformation(thing: object) -> TypeGuard[Optimizer]:
    """Returns whether a thing has the two functions of a gradient transformation."""
    has_init = callable(getattr(thing, "init", None))
    has_update = callable(getattr(thing, "update", None))
    return has_init and has_update


def runs_later(function: object) -> bool:
    """Returns whether a call returns before the body runs: a generator or a coroutine."""
    return (
        inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    )


def parameters(function: Function) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters by name, but for variadic ones; none without a signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # A class without a constructor of its own, or a function in C.
        return {}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind not in variadic:
            named[name] = parameter
    return named


def required(function: Function) -> list[str]:
    """Returns the names of the parameters without a default."""
    names = []
    for name, parameter in parameters(function).items():
        if parameter.default is inspect.Parameter.empty:
            names.append(name)
    return names
