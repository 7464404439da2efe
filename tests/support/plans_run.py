"""Programs run by plans: as written, with all lines rounding, and in wide types."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from dtypeguard._carry.tracing import make_jaxpr_with_aux
from dtypeguard._leaves.compat import traced_anew
from dtypeguard._numbers import plans
from dtypeguard._numbers.formats import Formats
from dtypeguard._numbers.primitives import Noted
from dtypeguard._numbers.probes import Probes, note_decisions
from dtypeguard._numbers.program import NumericProgram
from dtypeguard._numbers.run import run
from dtypeguard._program.aligned import WIDER, SecondTraces, beside_trace


class Planned:
    """A function that is run by plans.

    Attributes:
        program: its program.
        arrays: its inputs.
        decisions: what it decides as written.

    Args:
        f: the function.
        args: its arguments.
        wide: the wide dtype.
        narrow: if given, all is run as if it were at most this wide.
    """

    def __init__(self, f, *args, wide="float32", narrow=None):
        leaves, structure = tree_util.tree_flatten(args)
        self.arrays = [jnp.asarray(leaf) for leaf in leaves]
        flat = lambda *leaves: (f(*tree_util.tree_unflatten(structure, leaves)), None)
        with traced_anew():
            jaxpr, _ = make_jaxpr_with_aux(flat, *self.arrays)
            constants = beside_trace(jaxpr, flat, WIDER)
        narrow = None if narrow is None else jnp.dtype(narrow)
        self.program = NumericProgram(
            jaxpr, Formats(jnp.dtype(wide), narrow), SecondTraces(constants)
        )
        self.decisions = Noted()

    def written(self):
        probes = Probes(note_decisions)
        made = run(self.program, plans.written(self.program), self.arrays, probes)
        self.decisions = probes.noted
        return made

    def rounding(self, lines=None):
        """The results with these lines rounding, or all, and the decisions as written."""
        if not self.decisions:
            self.written()
        lines = range(len(self.program.lines)) if lines is None else lines
        plan = plans.rounding(self.program, lines)
        return run(self.program, plan, self.arrays, Probes(followed=self.decisions))

    def wide(self):
        """The results in wide types, with the decisions of these."""
        return run(self.program, plans.wide(self.program), self.arrays)


def assert_same(first, second, name=""):
    """Of two lists of arrays: bit for bit, whatever the dtype is that holds the numbers."""
    assert len(first) == len(second)
    for one, other in zip(first, second):
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = map(jax.random.key_data, (one, other))
        if jnp.issubdtype(one.dtype, jnp.inexact):
            kind = jnp.complexfloating if jnp.iscomplexobj(one) else jnp.floating
            widest = np.complex128 if kind is jnp.complexfloating else np.float64
            one, other = (np.asarray(x).astype(widest) for x in (one, other))
        np.testing.assert_array_equal(one, other, err_msg=name)
