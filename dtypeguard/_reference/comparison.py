"""Compares a program with a reference: what is checked before it runs, and what is said."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._leaves.arguments import shown
from .._leaves.dtypes import bits, kind
from .._leaves.types import Function, Leaf, PyTree
from .._paired.subject import Subject, Traced
from .._paired.values import Formats
from .divergence import divergence
from .given import arrays_of, check_function, is_function
from .reference import Judge
from .runs import Call


def comparison(
    reference: PyTree, subject: Subject, traced: Traced, formats: Formats
) -> Callable[[Sequence[Leaf]], dict[str, Any]]:
    """Checks a reference; returns what compares the two on some arrays.

    Args:
        reference: a tree of arrays, a dict of them by path, or a function.
        subject: the function and its arguments.
        traced: the function, traced.
        formats: the dtypes of the audit.

    Returns:
        A function of the inputs. It returns the fields of a report.

    Raises:
        ValueError: if the reference has another tree or other shapes.
        TypeError: if it holds something else than numbers.
    """
    paths, avals = traced.outputs, traced.program.out_avals
    given, other = {}, None
    if is_function(reference, paths):
        other = _traced(subject, reference)
        outputs = zip(other.outputs, other.program.out_avals)
        check_function(reference, [*zip(paths, avals)], [*outputs])
    else:
        is_result = [not path.startswith(("[1]", "[2]")) for path in paths]
        given = arrays_of(reference, paths, avals, is_result)

    def called(function: Function, traced: Traced, arrays: Sequence[Leaf]) -> Call:
        call = Call(traced.program, traced.numbers, arrays)
        wider = [*map(_wider, arrays)]
        if all(x is y for x, y in zip(arrays, wider)):
            return call
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first trace has warned
            try:
                again = subject.traced(function, wider)
            except Exception:  # it asks for its dtypes
                return call
        shapes = lambda program: [x.shape for x in program.out_avals]
        if shapes(again.program) != shapes(traced.program):
            return call
        return call._replace(in_float32=Call(again.program, again.numbers, wider))

    def compare(arrays: Sequence[Leaf]) -> dict[str, Any]:
        calls = [called(subject.f, traced, arrays)]
        if other is not None:
            calls.append(called(reference, other, arrays))
        judges = [Judge(call, paths, formats) for call in calls]
        # In float32 on both sides, if both are the same function there.
        are_same = len({call.in_float32 is None for call in calls}) == 1
        if not are_same or any(judge.is_another_in_float32() for judge in judges):
            calls = [call._replace(in_float32=None) for call in calls]
            judges = [Judge(call, paths, formats) for call in calls]
        if other is None:
            found = [judges[0].of_array(n, x) for n, x in sorted(given.items())]
            return {"differences": (*found,)}
        numbers = [n for n, x in enumerate(avals) if kind(x.dtype) is not None]
        found = {n: judges[0].of_function(n, judges[1]) for n in numbers}
        wrong = [n for n, each in found.items() if each.verdict == "differs"]
        where = divergence(*calls, wrong) if wrong else None
        return {"differences": (*found.values(),), "divergence": where}

    return compare


def _traced(subject: Subject, reference: Function) -> Traced:
    try:
        return subject.traced(reference)
    except Exception as error:
        error.add_note(
            f"That is reference={shown(reference)}, called with the arguments of "
            f"{shown(subject.f)}."
        )
        raise


def _wider(array: Leaf) -> Leaf:
    """An array in float32 if its dtype is narrower."""
    return array.astype(np.float32) if 0 < bits(array.dtype) < 32 else array
