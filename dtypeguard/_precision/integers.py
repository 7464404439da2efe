"""The integers of a program that do not fit their dtypes, and narrowed floats made bits."""

import numpy as np

from .._lines.equations import Written
from .._numbers.integers import COUNT, GREATEST, LEAST, NANS, SIZE
from .._numbers.measure import Measures
from .._source.origin import Origin
from .rows import IntegerMisfit, NarrowedBits

# For so many equations it is tried whether the outputs depend on what does not fit.
_MOST_TRIED = 8


def misfits(measures: Measures) -> tuple[IntegerMisfit, ...]:
    """Returns the lines whose integers do not fit, if outputs depend on them, in order."""
    rows = dict[Origin | None, IntegerMisfit]()
    tried = 0
    for node in measures.program.block.all_nodes():
        figures = np.reshape(measures.notes.get((node.number, "fit"), []), (-1, 5))
        wrong = np.asarray(figures, np.float64)[figures[:, COUNT] > 0]
        if not len(wrong):
            continue
        origin = Written(node.stack).origin
        if origin not in rows:
            tried += 1
            if tried > _MOST_TRIED or not measures.depends_on(node.number):
                continue
        ends = [np.max(wrong[:, GREATEST]), np.min(wrong[:, LEAST])]
        is_nan = np.all(wrong[:, NANS] == wrong[:, COUNT])
        row = IntegerMisfit(
            origin=origin,
            dtype=str(node.eqn.outvars[0].aval.dtype),
            value=np.nan if is_nan else float(max(ends, key=abs)),
            count=int(np.sum(wrong[:, COUNT])),
            size=int(np.sum(figures[:, SIZE])),
        )
        rows.setdefault(origin, row)
    return tuple(rows.values())


def narrowed_bits(measures: Measures) -> tuple[NarrowedBits, ...]:
    """Returns the narrowing conversions that lead to bits, a key or an integer."""
    rows = list[NarrowedBits]()
    watched = measures.watched
    for node in measures.program.block.all_nodes():
        operand = measures.notes.get((node.number, "given"))
        if operand is None or not np.any(measures.notes[node.number, "loses"]):
            continue
        before, after = node.eqn.invars[0].aval.dtype, node.eqn.outvars[0].aval.dtype
        different = np.unique(np.asarray(operand))
        narrowed = different.astype(measures.program.formats.written(after))
        _, counts = np.unique(narrowed.astype(np.float64), return_counts=True)
        equal = int(np.sum(counts[counts > 1]))
        if equal or node.number in watched.to_bits:
            origin = Written(node.stack).origin
            row = NarrowedBits(origin, str(before), str(after), equal, different.size)
            rows.append(row)
    return tuple(rows)
