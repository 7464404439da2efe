"""What a plan is measured on, and the programs that have one."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._leaves.arguments import shown
from .._leaves.types import Args, DType, Function, Kwargs
from .._numbers.formats import Formats
from .._numbers.subject import Subject, formats_of
from .._program.graph import Graph
from .prepared import Prepared, Show, prepared_program

BUDGET = 300
_NARROW_DTYPES = jnp.dtype("bfloat16"), jnp.dtype("float16")


class PlannedInputs(NamedTuple):
    """What a plan is measured on beside the arguments of the function.

    Attributes:
        also: more arguments for the search, which a plan has to be right for as well, by
            position and by name.
        held_out: arguments that the search does not see.
        budget: how many runs the search may make.
    """

    also: Sequence[tuple[Args, Kwargs]] = ()
    held_out: Sequence[tuple[Args, Kwargs]] = ()
    budget: int = BUDGET


def inputs_of(
    owner: str,
    also: Sequence[Args],
    held_out: Sequence[Args],
    kwargs: Kwargs | None,
    budget: int = BUDGET,
) -> PlannedInputs:
    """Returns more arguments by position, beside the same ones by name.

    Raises:
        TypeError: if they are no list of tuples.
    """
    for option, calls in (("also", also), ("held_out", held_out)):
        if not isinstance(calls, (list, tuple)) or set(map(type, calls)) - {tuple}:
            raise TypeError(
                f"{owner} got {option}={shown(calls)}. Write a list of tuples of "
                f"arguments, such as {option}=[(params, other_batch)]."
            )
    by_name = dict(kwargs or {})
    return PlannedInputs(
        also=[(args, by_name) for args in also],
        held_out=[(args, by_name) for args in held_out],
        budget=budget,
    )


def has_plan(formats: Formats) -> bool:
    """Returns whether there are plans in these dtypes."""
    # `autocast` casts between these alone.
    return formats.narrow in _NARROW_DTYPES and formats.wide == np.float32


def planned_call(
    f: Function,
    args: Args,
    kwargs: Kwargs | None,
    narrow: DType,
    show: Show,
) -> AbstractContextManager[Prepared]:
    """Runs a call as if all of it were narrow; more runs are made within."""
    subject = Subject(f, args, kwargs, None)
    subject.check_values("a plan", "measure")
    show("tracing")
    traced = subject.traced(is_planned=True)
    formats = formats_of(traced.avals, None, narrow)
    # Before the runs: they take long, and would be for nothing.
    if not has_plan(formats):
        raise TypeError(
            f"audit_precision got narrow={shown(narrow)}. Write narrow=jnp.bfloat16 or "
            "narrow=jnp.float16: a plan has no other."
        )
    return prepared_program(subject, traced, Graph(traced.program), formats, show)
