"""The integers of a program that do not fit their dtypes, and narrowed floats made bits."""

from collections.abc import Iterator

import numpy as np

from .._numbers.measure import Measures
from .._tracebacks.written import Written
from .rows import IntegerMisfit, NarrowedBits

# For so many lines it is tried whether the outputs depend on what does not fit.
_MOST_TRIED = 8


def misfits(measures: Measures) -> tuple[IntegerMisfit, ...]:
    """Returns the lines whose integers do not fit, if outputs depend on them, in order."""
    rows = {}
    tried = 0
    for node in measures.program.block.all_nodes():
        # For each turn of loops around it: how many do not fit, the greatest, the least.
        turns = np.asarray(
            measures.notes.get((node.number, "fit"), ()), np.float64
        ).reshape(-1, 3)
        count = int(turns[:, 0].sum())
        origin = Written(node.stack).origin
        if not count:
            continue
        if tried == _MOST_TRIED:
            break
        # What follows on the same line may be a consequence.
        if origin in rows:
            continue
        tried += 1
        # A hash wraps on purpose, and an unused index harms nobody.
        if not measures.depends_on(node.number):
            continue
        extremes = turns[:, 1:]
        result = node.eqn.outvars[0].aval
        rows[origin] = IntegerMisfit(
            origin=origin,
            dtype=str(result.dtype),
            value=float(extremes.flat[abs(extremes).argmax()]),
            count=count,
            size=len(turns) * result.size,
        )
    return tuple(rows.values())


def narrowed_bits(measures: Measures) -> Iterator[NarrowedBits]:
    """Yields the narrowing conversions that lead to bits, a key or an integer."""
    for node in measures.program.block.all_nodes():
        operand = measures.notes.get((node.number, "given"))
        if operand is None:
            continue
        after = node.eqn.outvars[0].aval.dtype
        # Equal numbers that stay equal lose nothing: keys collide where different ones
        # merge.
        different = np.unique(operand)
        _, counts = np.unique(
            different.astype(measures.program.formats.written(after)).astype(np.complex128),
            return_counts=True,
        )
        equal = int(counts[counts > 1].sum())
        if equal:
            yield NarrowedBits(
                origin=Written(node.stack).origin,
                before=str(node.eqn.invars[0].aval.dtype),
                after=str(after),
                equal=equal,
                different=different.size,
            )
