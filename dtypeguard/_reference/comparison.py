"""Compares a program with a reference: what is checked before it runs, and what is said."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._leaves.arguments import shown
from .._leaves.dtypes import bits, kind
from .._leaves.types import Function, Leaf, PyTree
from .._numbers.formats import Formats
from .._numbers.subject import Subject, Traced
from .divergence import divergence
from .given import arrays_of, check_function, is_function
from .reference import Judge
from .runs import RunCall


def comparison(
    reference: PyTree, subject: Subject, traced: Traced, formats: Formats
) -> Callable[[Sequence[Leaf]], dict[str, Any]]:
    """Checks a reference; returns what compares the two on some arrays."""
    paths, avals = traced.outputs, traced.program.out_avals
    given, other = {}, None
    if subject.given.arrays and is_function(reference, paths) and _takes_none(reference):
        reference = reference()
    if is_function(reference, paths):
        other = _traced(subject, reference)
        outputs = zip(other.outputs, other.program.out_avals)
        check_function(reference, [*zip(paths, avals)], [*outputs])
    else:
        is_result = [not path.startswith(("[1]", "[2]")) for path in paths]
        given = arrays_of(reference, paths, avals, is_result)

    functions = [(subject.f, traced)] + ([] if other is None else [(reference, other)])

    def compare(arrays: Sequence[Leaf]) -> dict[str, Any]:
        as_given = [RunCall(x.program, x.numbers, arrays) for _, x in functions]
        wider = [_in_float32(subject, *each, arrays) for each in functions]
        calls = [c._replace(in_float32=w) for c, w in zip(as_given, wider)]
        judges = [Judge(call, paths, formats) for call in calls]
        # In float32 on both sides, if both are the same functions there.
        is_one_alone = len({each is None for each in wider}) > 1
        if is_one_alone or any(judge.is_another_in_float32() for judge in judges):
            calls = as_given
            judges = [Judge(call, paths, formats) for call in calls]
        if other is None:
            found = [judges[0].of_array(n, x) for n, x in sorted(given.items())]
            return {"differences": (*found,)}
        numbers = [n for n, x in enumerate(avals) if kind(x.dtype) is not None]
        found = {n: judges[0].of_function(n, judges[1]) for n in numbers}
        wrong = [n for n, each in found.items() if each.verdict == "differs"]
        where = divergence(calls[0], calls[1], wrong) if wrong else None
        return {"differences": (*found.values(),), "divergence": where}

    return compare


def _takes_none(reference: Function) -> bool:
    """Whether a function has no parameters: then it gives the arrays."""
    try:
        return not inspect.signature(reference).parameters
    except (TypeError, ValueError):  # of an object that shows no signature
        return False


def _in_float32(
    subject: Subject, function: Function, traced: Traced, arrays: Sequence[Leaf]
) -> RunCall | None:
    """A call with what is narrower than float32 in it; None if it does not trace so."""
    is_narrow = lambda x: 0 < bits(x.dtype) < 32
    if not any(map(is_narrow, arrays)):
        return None
    wider = [x.astype(np.float32) if is_narrow(x) else x for x in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first trace has warned
        try:
            again = subject.traced(function, wider)
        except Exception:  # it asks for its dtypes
            return None
    shapes = lambda traced: [x.shape for x in traced.program.out_avals]
    is_same = shapes(again) == shapes(traced)
    return RunCall(again.program, again.numbers, wider) if is_same else None


def _traced(subject: Subject, reference: Function) -> Traced:
    try:
        return subject.traced(reference)
    except Exception as error:
        error.add_note(
            f"That is reference={shown(reference)}, called with the arguments of "
            f"{shown(subject.f)}."
        )
        raise
