"""Has XLA compile a program or a loop of it, once for all runs by equal plans.

No rounding is left out, as in a run equation by equation: what is narrow stands behind a
barrier. Sums may be in another order, by which float32 differs in its last digits.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from .._leaves.compat import HAS_FUSION_EMITTERS
from .._leaves.types import Function
from .._program.jaxprs import Arrays
from .._program.program import LOOPS, Node
from .primitives import Noted, Results
from .probes import DECISION, Probes
from .program import NumericProgram

# At this level XLA contracts no product with a sum, so that each equation rounds. A program
# runs some dozen times at most, so it is compiled quickly as well.
_QUICKLY: dict[str, str | int] = {
    "xla_backend_optimization_level": "0",
    # More parts would be compiled at the same time, and all of them in more time.
    "xla_cpu_parallel_codegen_split_count": 1,
}
if HAS_FUSION_EMITTERS:
    # The older emitters make the same numbers in a third less time.
    _QUICKLY["xla_cpu_use_fusion_emitters"] = False


def jit_quickly(function: Function, static_argnums: Sequence[int] = ()) -> Function:
    """Returns a function that XLA compiles in little time, to run it a few times."""
    # The options are of XLA for CPUs.
    options = None
    if jax.default_backend() == "cpu":
        options = _QUICKLY
    return jax.jit(function, static_argnums=static_argnums, compiler_options=options)


def call_compiled(
    program: NumericProgram,
    key: object,
    compute: Callable[..., tuple[Arrays, Noted]],
    operands: Sequence[Any],
    probes: Probes,
) -> Results:
    """Returns the results of a function as XLA compiles it.

    Args:
        program: the program, which keeps what is compiled.
        key: equal for functions that compute the same.
        compute: the function, which returns its results, and what is noted.
        operands: its operands.
        probes: get what is noted.
    """
    functions = program.functions
    if key not in functions:

        def traced(room, *operands):
            # JAX traces it anew where a loop asks for other room.
            return compute(*operands)

        functions[key] = jit_quickly(traced, static_argnums=[0])
    while True:
        room = tuple(loop.room for loop in program.while_loops)
        results = functions[key](room, *operands)
        results, noted = jax.block_until_ready(results)
        if all(_cut_to_turns(loop, noted) for loop in program.while_loops):
            probes.noted.update(noted)
            return list(results)


def _cut_to_turns(loop: Node, noted: Noted) -> bool:
    """Cuts the notes of a loop to its turns; returns whether there was room for all."""
    key_of_turns = (loop.number, DECISION)
    all_turns = noted.get(key_of_turns, 0)
    most_turns = np.max(all_turns, initial=0)
    turns = int(most_turns)
    if turns > loop.room:
        loop.room = 2 ** (turns - 1).bit_length()
        return False
    # The turns of the loops around it come first.
    axis = 0
    for outer in loop.stack[1:]:
        if outer.primitive.name in LOOPS:
            axis += 1
    first = loop.inner[0].first
    numbers = range(first, loop.number)
    for key, rows in noted.items():
        number, _ = key
        if number in numbers:
            noted[key] = lax.slice_in_dim(rows, 0, turns, axis=axis)
    return True
