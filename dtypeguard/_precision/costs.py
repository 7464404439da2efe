"""What a report says of costs: which lines make a program compute wider than necessary."""

import re
from collections.abc import Callable, Sequence

from .._carry.places import Names
from .._leaves.types import Function
from .._program.origins import Origin
from .flow import Flow, Input, bits_of
from .report import LineCost, place_of

_LEAST_SHARE = 0.01
# Calls that take a dtype. What `arange` makes is often an index, to be kept wide.
_MAKERS = ("random.", "one_hot(", "ones(", "zeros(", "full(", "eye(", "tri(")


def line_costs(flow: Flow, harm: Callable[[int], float]) -> tuple[LineCost, ...]:
    """The sources that make more than a hundredth of the work wide, the dearest first.

    Args:
        flow: of the program.
        harm: of a source, by its number.
    """
    total = sum(flow.work.values())
    found = []
    for number, source in enumerate(flow.sources):
        mine = {mask: count for mask, count in flow.work.items() if mask >> number & 1}
        share = sum(mine.values()) / total
        if share < _LEAST_SHARE or source.is_of_jax:
            continue
        others = {other for mask in mine for other in bits_of(mask)} - {number}
        found.append(
            LineCost(
                origin=source.origin,
                cause=_cause(flow, number),
                share=share,
                saves=mine.get(1 << number, 0.0) / total,
                harm=harm(number),
                is_cast=source.is_cast,
                others=tuple(place_of(_cause(flow, each)) for each in sorted(others)),
                remedy=_remedy(flow, number),
            )
        )
    return tuple(sorted(found, key=lambda cost: (-cost.saves, -cost.share)))


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


def input_names(f: Function, paths: Sequence[str]) -> list[Input]:
    """The names of the inputs of a function.

    Args:
        f: the function.
        paths: of its arguments, in a tree `(args, kwargs)`.
    """
    names, found = Names.of(f), []
    for path in paths:
        place, key, rest = _PATH.fullmatch(path).groups()  # pyright: ignore[reportOptionalMemberAccess]: paths of a tuple have two keys
        argument = key.strip("'") if place == "1" else names.at(int(key))
        found.append(Input(argument, argument + rest))
    return found


_PATH = re.compile(r"\[([01])\]\[([^\]]*)\](.*)", re.DOTALL)
