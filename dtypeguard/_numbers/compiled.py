"""Has XLA compile a program or a loop of it, once for all runs by equal plans.

No rounding is left out, as in a run equation by equation: what is narrow stands behind a
barrier. Sums may be in another order, by which float32 differs in its last digits.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from .._leaves.types import Leaf
from .probes import Notes, Probes, RunCounts
from .program import NumericProgram

# A `while_loop` has room for the notes of so many turns at first.
FEW_TURNS = 16
# At this level XLA contracts no product with a sum, so that each equation rounds. A program
# runs some dozen times, so it is compiled quickly as well.
_QUICKLY = {"xla_backend_optimization_level": "0"}


def call_compiled(
    program: NumericProgram,
    key: object,
    compute: Callable[..., tuple[Sequence[Leaf], Notes]],
    operands: Sequence[Any],
    probes: Probes,
) -> list[Leaf]:
    """Returns the results of a function as XLA compiles it.

    Args:
        program: the program, which keeps what is compiled.
        key: equal for functions that compute the same.
        compute: the function, which returns its results, and what is noted.
        operands: its operands.
        probes: get what is noted.
    """
    # The option is of XLA for CPUs.
    options = _QUICKLY if jax.default_backend() == "cpu" else None
    if key not in program.functions:

        def traced(room, *operands):
            # JAX traces it anew for other room, which a loop asks the program for.
            return compute(*operands)

        program.functions[key] = jax.jit(traced, static_argnums=0, compiler_options=options)
    while True:
        room = tuple(program.room.items())
        with np.errstate(over="ignore"):  # NumPy warns of constants: -1e9 in float16
            results = program.functions[key](room, *operands)
        results, notes = jax.block_until_ready(results)
        if not _has_grown(program.room, notes.counts):
            break
    _trim(notes)
    probes.add(notes)
    return list(results)


def _has_grown(room: dict[int, int], counts: RunCounts) -> bool:
    """Makes room for the notes of loops; returns whether there was not enough."""
    has_grown = False
    for (_, number, axis), count in counts.items():
        turns = _most(count)
        if axis is not None and turns > room.get(number, FEW_TURNS):
            room[number] = 2 ** (turns - 1).bit_length()
            has_grown = True
    return has_grown


def _trim(notes: Notes) -> None:
    """Removes the notes of branches that were not taken, and of turns not made."""
    for (first, last, axis), count in notes.counts.items():
        most = _most(count)
        for key, rows in list(notes.noted.items()):
            if key[0] not in range(first, last):
                continue
            if not most:
                del notes.noted[key]
            elif axis is not None:
                notes.noted[key] = lax.slice_in_dim(rows, 0, most, axis=axis)


def _most(count: Leaf) -> int:
    return int(np.max(count, initial=0))
