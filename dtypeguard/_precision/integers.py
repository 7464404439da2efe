"""The integers of a program that do not fit their dtypes, and narrowed floats made bits."""

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
        # A row for each turn of the loops around it.
        noted = measures.notes.get((node.number, "fit"), ())
        turns = np.asarray(noted, np.float64).reshape(-1, 3)
        count = int(np.sum(turns[:, 0]))
        origin = Written(node.stack).origin
        if not count:
            continue
        # What follows on the same line may be a consequence.
        if origin in rows:
            continue
        if tried == _MOST_TRIED:
            continue
        tried += 1
        # A hash wraps on purpose, and an unused index harms nobody.
        if not measures.depends_on(node.number):
            continue
        result = node.eqn.outvars[0].aval
        # The greatest and the least of each turn.
        outliers = np.ravel(turns[:, 1:])
        furthest = max(outliers, key=abs)
        rows[origin] = IntegerMisfit(
            origin=origin,
            dtype=str(result.dtype),
            # 0 stands for numbers that are none: what is in range fits.
            value=float(furthest) or np.nan,
            count=count,
            size=len(turns) * result.size,
        )
    return tuple(rows.values())


def narrowed_bits(measures: Measures) -> tuple[NarrowedBits, ...]:
    """Returns the narrowing conversions that lead to bits, a key or an integer."""
    rows = []
    for node in measures.program.block.all_nodes():
        operand = measures.notes.get((node.number, "given"))
        loses = measures.notes.get((node.number, "loses"), False)
        if operand is None:
            continue
        if not np.any(loses):
            continue
        before = node.eqn.invars[0].aval.dtype
        after = node.eqn.outvars[0].aval.dtype
        # Equal numbers that stay equal lose nothing: keys collide where different ones
        # merge.
        different = np.unique(np.asarray(operand))
        narrow_dtype = measures.program.formats.written(after)
        narrowed = different.astype(narrow_dtype).astype(np.complex128)
        _, counts = np.unique(narrowed, return_counts=True)
        merged = counts[counts > 1]
        equal = int(np.sum(merged))
        if equal:
            row = NarrowedBits(
                origin=Written(node.stack).origin,
                before=str(before),
                after=str(after),
                equal=equal,
                different=different.size,
            )
            rows.append(row)
    return tuple(rows)
