"""Compares a program with a reference: what is checked before it runs, and what is said."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._leaves.arguments import shown
from .._leaves.dtypes import bits
from .._leaves.types import Function, Leaf, PyTree
from .._numbers.subject import Subject, Traced
from .._numbers.formats import Formats
from .divergence import divergence
from .given import arrays_of, check_function, is_function
from .reference import differences
from .roundings import Call


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
    if not is_function(reference, paths):
        is_result = [not path.startswith(("[1]", "[2]")) for path in paths]
        given, other = arrays_of(reference, paths, avals, is_result), None
    else:
        given, other = {}, _traced(subject, reference)
        outputs = zip(other.outputs, other.program.out_avals)
        check_function(reference, [*zip(paths, avals)], [*outputs])

    def called(function: Function, traced: Traced, arrays: Sequence[Leaf]) -> Call:
        call = Call(traced.program, traced.numbers, arrays, formats)
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
        same = Call(again.program, again.numbers, wider, formats)
        return call._replace(in_float32=same)

    def compare(arrays: Sequence[Leaf]) -> dict[str, Any]:
        call = called(subject.f, traced, arrays)
        if other is None:
            return {"differences": differences(call, paths, given, None).differences}
        own = called(reference, other, arrays)
        found, call, own = differences(call, paths, given, own)
        numbers_of = {path: number for number, path in enumerate(paths)}
        differ = [numbers_of[x.output] for x in found if x.verdict == "differs"]
        where = divergence(call, own, differ) if differ and own is not None else None
        return {"differences": found, "divergence": where}

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
