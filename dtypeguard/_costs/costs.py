"""What a report says of costs: which lines make a program compute wider than necessary."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from .._carry.places import Names
from .._leaves.rows import cast_text
from .._leaves.types import Function
from .._lines.equations import Written
from .._source.origin import Origin, place_of
from .flow import Flow, Input, bits_of

_LEAST_SHARE = 0.01
# Inputs that are traced each by itself. Of more, the program as it is tells their figures.
_MOST_TRACED = 4


@dataclasses.dataclass(frozen=True)
class LineCost:
    """A source of wide values that makes a program compute wider than necessary.

    Attributes:
        origin: the line at which narrow values become wide because of it.
        cause: the line that makes the wide values: a cast, a constant, `jax.random.normal`;
            the name of an input if that is wide.
        share: the share of the operations of matrix products and convolutions that run wide
            because of it, alone or together with others.
        saves: the share that is narrow again if this source alone is.
        harm: the error that is added to the outputs if the products that it makes wide,
            and what is computed for them, are rounded to the narrow dtype: measured, and
            relative to the outputs as written. Not a number if nothing was run, or if the
            source shows only where the inputs that are sources are narrow.
        is_cast: whether it is an explicit cast of narrow values.
        others: the other sources that make some of the same work wide. What `saves` lacks
            in `share` is narrow only if they are as well.
        remedy: what to write, as a sentence.
    """

    origin: Origin | None
    cause: Origin | str
    share: float
    saves: float
    harm: float
    is_cast: bool
    others: tuple[str, ...] = ()
    remedy: str = ""


class Figures(NamedTuple):
    """What is known of a source.

    Attributes:
        share: see `LineCost`, as the others.
        saves: that of the others.
        others: the places of the others.
        flow: that which has it.
        number: its own, there.
    """

    share: float
    saves: float
    others: frozenset[str]
    flow: Flow
    number: int


def line_costs(
    figures: Iterable[Figures], harm: Callable[[Flow, int], float]
) -> tuple[LineCost, ...]:
    """The sources that make more than a hundredth of the work wide, the greatest first.

    Args:
        figures: of all sources.
        harm: of a source, by the flow that has it and its number.
    """
    found = []
    for share, saves, others, known, number in figures:
        source = known.sources[number]
        if share < _LEAST_SHARE or source.is_of_jax:
            continue
        found.append(
            LineCost(
                origin=known.origin(number),
                cause=_cause(known, number),
                share=share,
                saves=saves,
                harm=harm(known, number),
                is_cast=source.is_cast,
                others=tuple(sorted(others)),
                remedy=_remedy(known, number),
            )
        )
    return tuple(sorted(found, key=lambda cost: (-cost.saves, -cost.share)))


def figures_of(
    flow: Flow, again: Callable[[frozenset[int]], Flow | None]
) -> Iterator[Figures]:
    """What each source costs: an input that of a program without it, which is traced.

    What a line makes shows in the program without wide inputs. Beside these, it may look
    like a number that takes their dtype, and `x.astype(y.dtype)` like a source.

    Args:
        flow: of the program.
        again: the flow of the program with some of its inputs narrow, by their numbers;
            None if it does not trace so.
    """
    again = functools.cache(again)
    total = sum(flow.work.values())
    shown = {flow.sources[n].key: n for n in flow.used}
    inputs = {n: frozenset(flow.leaves(n)) for n in flow.used}
    inputs = {n: leaves for n, leaves in inputs.items() if leaves}
    every = frozenset[int]().union(*inputs.values())
    bare = again(every) if inputs else flow
    if bare is None:  # as written, it can be told apart less well
        bare, inputs = flow, {}
    if len(inputs) <= _MOST_TRACED:
        flow.named.update((n, _named(flow, n, inputs[n], again)) for n in inputs)
    lines = {bare.sources[n].key: n for n in bare.used if not bare.leaves(n)}
    if not inputs:
        lines |= shown
    false = flow.without({*lines, *(flow.sources[n].key for n in inputs)})
    place = lambda flow, number: place_of(_cause(flow, number))
    hidden = {place(bare, n) for key, n in lines.items() if key not in shown}
    # Where the lines are the same without wide inputs, these can be told apart as well.
    is_traced = bool(false or hidden or flow.has_followers)
    is_traced &= len(inputs) <= _MOST_TRACED
    for key, number in shown.items():
        bit = 1 << number
        masks = [mask & ~false for mask in flow.work if mask & bit]
        others = {other for mask in masks for other in bits_of(mask)} - {number}
        others = frozenset(place(flow, other) for other in others)
        if number not in inputs:
            if key in lines:
                share = bare.wide(1 << lines[key]) / total
                saves = flow.alone(bit, false) / total
                yield Figures(share, saves, others, flow, number)
            continue
        rest = every - inputs[number]
        own = flow if not rest else again(rest) if is_traced else None
        without = bare if not rest else again(inputs[number]) if is_traced else None
        if own is None or without is None:
            own = without = None
        share = flow.wide(bit) if own is None else own.wide(own.without(lines))
        left = flow.wide() - flow.alone(bit, false) if without is None else without.wide()
        saves = flow.wide() - left
        others |= hidden if share > saves else set()
        yield Figures(share / total, saves / total, others, flow, number)
    leaves = {place(flow, n) for n in inputs}
    for key, number in lines.items():
        if key not in shown:
            share = bare.wide(1 << number) / total
            yield Figures(share, 0.0, frozenset(leaves), bare, number)


def _named(
    flow: Flow,
    number: int,
    leaves: frozenset[int],
    again: Callable[[frozenset[int]], Flow | None],
) -> frozenset[int]:
    """The inputs of a source to be given narrow: all, or without some that are cast.

    The fewest of those that were tried, and do.
    """
    holder = lambda value: _LAST_KEY.sub("", flow.inputs[value].path)
    close = flow.met_by_products(number)
    holders = set(map(holder, close))
    beside = frozenset(value for value in leaves if holder(value) in holders)
    # A layer casts its bias and its kernel to one dtype.
    tried = [each for each in (close, beside, flow.met(number)) if each]
    if not flow.cast(leaves - close) or not (mended := again(leaves)):
        return leaves
    wide = mended.wide()
    enough = lambda each: (found := again(each)) is not None and found.wide() <= wide
    return next(filter(enough, tried), leaves)


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
    cast = cast_text(narrow)
    if isinstance(source.cause, str):
        return _remedy_of_inputs(flow, number, cast)
    where = source.cause.place
    if source.is_policy:
        return f"Leave out the compute_dtype of the policy at {where}, and call init again."
    if source.is_cast:
        return f"Leave out the cast at {where}, or cast back before the products: {cast}."
    if source.is_product:
        return f"Leave out preferred_element_type at {where}, or cast its result: {cast}."
    if source.is_number:
        return f"Write a Python number at {where}, float(...): NumPy's scalars promote."
    if source.is_array:
        return f"Cast the array that {where} closes over: {cast}."
    uses, makers = flow.uses(number), flow.makers(number) or [where]
    is_elsewhere = bool(uses) and uses != makers
    at = f"{_and(uses, 'use')} it" if is_elsewhere else "it is used"
    text = f"Cast what {_and(makers, 'make')}, where {at}: {cast}"
    if makers == [where] and any(Written(x).takes_dtype for x in source.stacks.values()):
        text += f", or give the call dtype=jnp.{narrow}"
    return f"{text}."


def _and(places: Sequence[str], verb: str) -> str:
    return f"{' and '.join(places)} {verb}{'s' * (len(places) == 1)}"


def _remedy_of_inputs(flow: Flow, number: int, cast: str) -> str:
    paths, many = flow.paths(number), ""
    if any(each.argument == paths[0] != each.path for each in flow.inputs):
        dtypes = [f"jnp.{dtype}" for dtype in flow.dtypes(number)]
        are = f"in ({', '.join(dtypes)})" if len(dtypes) > 1 else f"== {dtypes[0]}"
        is_wide = f'if getattr(x, "dtype", None) {are} else x'
        cast = f"jax.tree.map(lambda x: {cast} {is_wide}, {paths[0]})"
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


_LAST_KEY = re.compile(r"(\[[^\[\]]*\]|\.\w+)$")
_PATH = re.compile(r"\[([01])\]\[([^\]]*)\](.*)", re.DOTALL)
