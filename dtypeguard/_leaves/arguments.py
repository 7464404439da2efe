"""Checks arguments, and asks about callables: what they are, what they take."""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import numpy as np
from jax import tree_util

from .dtypes import dtype_of, kind
from .key_path import by_key_path, key_paths, path_text
from .leaf_change import leaf_changes, tree_changes
from .leaf_type import describe
from .table import Table
from .types import Function, Leaf, Params, PyTree, State, Updates

_LARGEST = float(np.finfo(np.float32).max)


def is_finite(number: float) -> bool:
    """Whether a number is finite in float32, in which optimizers compute."""
    return abs(number) <= _LARGEST


def check_number(
    owner: str, name: str, value: Leaf, is_allowed: Callable[[float], bool], remedy: str
) -> None:
    """Checks that a value is a scalar number, in range unless it is a JAX array."""
    if kind(dtype_of(value)) not in ("int", "float") or np.ndim(value) > 0:
        raise TypeError(f"{owner} got {name}={shown(value)}: {remedy}.")
    is_known = isinstance(value, (int, float, np.generic, np.ndarray))
    if is_known and not is_allowed(value if isinstance(value, int) else float(value)):
        raise ValueError(f"{owner} got {name}={value}: {remedy}.")


def check_rate(
    owner: str, value: Leaf, is_allowed: Callable[[float], bool] = is_finite
) -> None:
    """Checks that a learning rate is a scalar number or a schedule."""
    if not callable(value):
        remedy = "write a number, such as 1e-3, or a function of the number of updates"
        check_number(owner, "learning_rate", value, is_allowed, remedy)


def check_state(owner: str, state: State, state_type: Any, init: str) -> None:
    """Checks that a state has the fields of its type: arguments may be out of order."""
    if not all(hasattr(state, name) for name in state_type._fields):
        raise TypeError(
            f"{owner} got a state of type {type(state).__name__}, not "
            f"{state_type.__name__}. Write update(updates, state, params), with the state "
            f"of {init} or of the update before."
        )


def check_grads(owner: str, updates: Updates, params: Params) -> None:
    """Checks that gradients that are not None have the tree and shapes of the params."""
    try:
        grads = tree_util.tree_structure(params).flatten_up_to(updates)
    except ValueError:
        grads = None
    if grads is None or any(map(is_subtree, grads)):
        changes = tree_changes("updates", params, updates, "give one for each param")
        headline = f"{owner} got updates in another tree than the params:"
        raise ValueError(str(Table(headline, changes)))
    leaves = tree_util.tree_leaves(params)
    is_wrong = lambda p, g: g is not None and np.shape(g) != np.shape(p)
    remedies = ["give it in that shape" * is_wrong(*each) for each in zip(leaves, grads)]
    if any(remedies):
        paths = key_paths(params, "updates")
        changes = leaf_changes(paths, leaves, grads, remedies)
        headline = f"{owner} got updates in other shapes than the params:"
        raise ValueError(str(Table(headline, changes)))


def is_subtree(value: PyTree) -> bool:
    """Whether a value that stands where another tree has a leaf is no leaf, nor None."""
    return value is not None and not tree_util.all_leaves([value])


def check_leaves(
    takes: str, name: str, tree: PyTree, is_right: Callable[[Leaf], bool], remedy: str
) -> None:
    """Raises a `TypeError` that names the leaves that are not what a function takes."""
    told = lambda leaf: shown(leaf) if dtype_of(leaf) is None else describe(leaf)
    leaves = by_key_path(tree, name).items()
    wrong = [f"  {path_text(path)}: {told(x)}" for path, x in leaves if not is_right(x)]
    if wrong:
        raise TypeError("\n".join([f"{takes}; these are not:", *wrong, remedy]))


def check_arrays(owner: str, name: str, tree: PyTree) -> None:
    """Checks that each leaf of a tree is an array or stands for one."""
    is_array = lambda leaf: dtype_of(leaf) is not None or hasattr(leaf, "dtype")
    takes = f"{owner} takes arrays or jax.ShapeDtypeStructs for {name}"
    remedy = f"Write eqx.filter({name}, eqx.is_array) or None in their place."
    check_leaves(takes, name, tree, is_array, remedy)


def check_names(owner: str, name: str, value: object) -> None:
    """Checks that `extra_args` or `kwargs` are a dict with strings as keys."""
    if not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        such_as = f'such as {name}={{"value": loss}}'
        remedy = f"Write a dict of arguments by name, {such_as}"
        raise TypeError(f"{owner} got {name}={shown(value)}. {remedy}.")


def shown(value: object) -> str:
    """The repr of a value, cut at 80 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_transformation(thing: object) -> bool:
    """Whether a thing has the two functions of a gradient transformation."""
    return all(callable(getattr(thing, name, None)) for name in ("init", "update"))


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


def copy_of(function: FunctionType, without: str = "") -> FunctionType:
    """A function with the code and the attributes of another, one of these left out."""
    made = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(made, function)
    # Without a `__wrapped__` of its own.
    made.__dict__ = {k: v for k, v in vars(function).items() if k != without}
    return made
