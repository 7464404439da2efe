"""What a report says of costs: which lines make a program compute wider than necessary."""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .._leaves.dtypes import bits
from .._leaves.types import Function, Leaf
from .._program.origins import Origin
from .flow import Flow, Input, bits_of
from .report import LineCost, place_of

_LEAST_SHARE = 0.01
# Calls that take a dtype. What `arange` makes is often an index, to be kept wide.
_MAKERS = ("random.", "one_hot(", "ones(", "zeros(", "full(", "eye(", "tri(")


class Cost(NamedTuple):
    """A source and what it costs: see `LineCost`.

    Attributes:
        number: of the source.
        share: the share of the operations that it makes wide.
        saves: those that it alone makes wide.
        others: the numbers of the sources that make the same work wide.
    """

    number: int
    share: float
    saves: float
    others: tuple[int, ...]


def costs_of(flow: Flow) -> list[Cost]:
    """The sources that make more than a hundredth of the work wide, the dearest first."""
    total = sum(each.operations for each in flow.products)
    by_mask: dict[int, float] = defaultdict(float)
    for each in flow.products:
        by_mask[each.sources] += each.operations
    found = []
    for number in range(len(flow.sources)):
        mine = {mask: count for mask, count in by_mask.items() if mask >> number & 1}
        others = 0
        for mask in mine:
            others |= mask & ~(1 << number)
        share = sum(mine.values()) / total if total else 0.0
        saves = mine.get(1 << number, 0.0) / total if total else 0.0
        if share >= _LEAST_SHARE and not flow.sources[number].is_of_jax:
            found.append(Cost(number, share, saves, tuple(bits_of(others))))
    return sorted(found, key=lambda cost: (-cost.saves, -cost.share))


def line_costs(flow: Flow, harm: Callable[[int], float]) -> tuple[LineCost, ...]:
    """What a report says of the costs.

    Args:
        flow: of the program.
        harm: of a source, by its number.
    """
    found = []
    for cost in costs_of(flow):
        source = flow.sources[cost.number]
        found.append(
            LineCost(
                origin=source.origin,
                cause=_cause(flow, cost.number),
                share=cost.share,
                saves=cost.saves,
                harm=harm(cost.number),
                is_cast=source.is_cast,
                others=tuple(place_of(_cause(flow, n)) for n in cost.others),
                remedy=_remedy(flow, cost.number),
            )
        )
    return tuple(found)


def _cause(flow: Flow, number: int) -> Origin | str:
    """The line of a source, or the inputs that it stands for."""
    cause = flow.sources[number].cause
    if not isinstance(cause, str):
        return cause
    paths = flow.paths(number)
    return ", ".join(paths[:3]) + f" and {len(paths) - 3} more" * (len(paths) > 3)


def _remedy(flow: Flow, number: int) -> str:
    """What to write so that a source is narrow."""
    source, narrow = flow.sources[number], flow.narrow
    cast = f"x.astype(jnp.{narrow})"
    if isinstance(source.cause, str):
        return _remedy_of_inputs(flow, number, cast)
    where, code = source.cause.place, source.cause.code
    if source.is_policy:
        return f"Leave out the compute_dtype of the policy at {where}, and call init again."
    if source.is_cast:
        return f"Leave out the cast at {where}, or cast back before the products: {cast}."
    if source.is_product:
        return f"Leave out preferred_element_type at {where}, or cast its result: {cast}."
    if source.is_number:
        return f"Write a Python number at {where}, float(...): NumPy's scalars promote."
    use = source.origin or source.cause
    at = f"{use.place} uses it" if use != source.cause else "it is used"
    text = f"Cast what {where} makes, where {at}: {cast}"
    if any(name in code for name in _MAKERS):
        text += f", or give the call dtype=jnp.{narrow}"
    return f"{text}."


def _remedy_of_inputs(flow: Flow, number: int, cast: str) -> str:
    paths, many = flow.paths(number), ""
    if any(each.argument == paths[0] != each.path for each in flow.inputs):
        is_float = "if jnp.issubdtype(x.dtype, jnp.floating) else x"
        cast = f"jax.tree.map(lambda x: {cast} {is_float}, {paths[0]})"
    elif len(paths) == 1:
        cast = f"{paths[0]}{cast[1:]}"
    else:
        many = " of each"
    return f"Give {_cause(flow, number)} in {flow.narrow}: {cast}{many}."


def input_names(
    f: Function, paths: Sequence[str], arrays: Sequence[Leaf], narrow: np.dtype
) -> list[Input]:
    """The names of the inputs of a program; one name for an argument that is all wide.

    Args:
        f: the function.
        paths: of its arguments, in a tree `(args, kwargs)`.
        arrays: the inputs.
        narrow: the dtype that the program is expected to compute in.
    """
    positional = _positional(f)
    parts = [_name(path, positional) for path in paths]
    size = lambda x: bits(getattr(x, "dtype", None))
    narrows = {a for (a, _), x in zip(parts, arrays) if 0 < size(x) <= bits(narrow)}
    return [
        Input(name if name not in narrows else name + rest, name + rest)
        for name, rest in parts
    ]


def _name(path: str, positional: Sequence[str]) -> tuple[str, str]:
    """The name of an argument, and the path of a leaf inside of it."""
    place, key, rest = _PATH.fullmatch(path).groups()  # pyright: ignore[reportOptionalMemberAccess]: paths of a tuple have two keys
    if place == "1":
        return key.strip("'"), rest
    number = int(key)
    return positional[number] if number < len(positional) else f"args[{number}]", rest


_PATH = re.compile(r"\[([01])\]\[([^\]]*)\](.*)", re.DOTALL)


def _positional(f: Function) -> list[str]:
    try:
        given = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [each.name for each in given if each.kind in kinds]
