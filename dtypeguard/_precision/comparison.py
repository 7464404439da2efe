"""Compares a program with a reference: what is checked before it runs, and what is said."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._leaves.dtypes import bits
from .._leaves.types import Function, Jaxpr, Leaf, PyTree
from .._paired.python_numbers import PythonNumbers
from .._paired.values import Formats
from .divergence import divergence
from .draws import Call
from .given import arrays_of, check_function, is_function
from .reference import differences


def comparison(
    reference: PyTree,
    f: Function,
    program: Jaxpr,
    paths: Sequence[str],
    numbers: PythonNumbers,
    formats: Formats,
    trace: Callable[[Function, Sequence[Leaf] | None], Any],
) -> Callable[[Sequence[Leaf]], dict[str, Any]]:
    """Checks a reference; returns what compares the two on some arrays.

    Args:
        reference: a tree of arrays, a dict of them by path, or a function.
        f: the function.
        program: its jaxpr, closed.
        paths: of all its outputs.
        numbers: the Python numbers that were given to JAX when it was traced.
        formats: the dtypes of the audit.
        trace: traces a function of the same arguments, or of other arrays in them.

    Returns:
        A function of the inputs. It returns the fields of a report.

    Raises:
        ValueError: if the reference has another tree or other shapes.
        TypeError: if it holds something else than numbers.
    """
    avals = program.out_avals
    is_tree = not is_function(reference, paths)
    if is_tree:
        is_result = [not path.startswith(("[1]", "[2]")) for path in paths]
        given, other = arrays_of(reference, paths, avals, is_result), None
    else:
        given, other = {}, trace(reference, None)
        outputs = zip(other.outputs, other.program.out_avals)
        check_function(reference, [*zip(paths, avals)], [*outputs])

    def called(function: Function, program: Jaxpr, numbers: Any, arrays: Sequence[Leaf]):
        call, wider = Call(program, numbers, arrays, formats), [*map(_wider, arrays)]
        if all(x is y for x, y in zip(arrays, wider)):
            return call
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first trace has warned
            try:
                traced = trace(function, wider)
            except Exception:  # it asks for its dtypes
                return call
        shapes = lambda program: [x.shape for x in program.out_avals]
        if shapes(traced.program) != shapes(program):
            return call
        same = Call(traced.program, traced.numbers, wider, formats)
        return call._replace(in_float32=same)

    def compare(arrays: Sequence[Leaf]) -> dict[str, Any]:
        call = called(f, program, numbers, arrays)
        if other is None:
            return {"differences": differences(call, paths, given, None)}
        own = called(reference, other.program, other.numbers, arrays)
        found = differences(call, paths, given, own)
        numbers_of = {path: number for number, path in enumerate(paths)}
        differ = [numbers_of[x.output] for x in found if x.verdict == "differs"]
        where = divergence(call, own, differ) if differ else None
        return {"differences": found, "divergence": where}

    return compare


def _wider(array: Leaf) -> Leaf:
    """An array in float32 if its dtype is narrower."""
    return array.astype(np.float32) if 0 < bits(array.dtype) < 32 else array
