"""audit_precision on random programs: against float64, and with its advice followed."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import some
from numeric import EXACT, compiled, followed, inputs, source
from plans_run import Planned, assert_same

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS, set_x64

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8"),
]


def relative(x, exact):
    return np.linalg.norm(x - exact) / max(np.linalg.norm(exact), 1e-300)


@pytest.mark.parametrize("seed", some(range(24), 3))
def test_either_end_is_what_it_should_be(seed):
    """With no line rounding the program in float64, and with all of them as written."""
    text, args = source(seed), inputs(seed)
    planned = Planned(compiled(text, f"generated_{seed}.py"), *args, wide="float64")
    with set_x64(True):
        exact = compiled(text, f"exact_{seed}.py", wide=True)
        wanted = jax.jit(exact)(*(x.astype(jnp.float64) for x in args))
        written, every, none = planned.written(), planned.rounding(), planned.rounding(())
    with jax.disable_jit():
        own = compiled(text, f"generated_{seed}.py")(*args)
    assert not planned.program.unknown
    for line, wide, exact in zip(text.splitlines()[1:], none, wanted):
        assert relative(wide, exact) < 1e-7, line
    assert_same(written, every)
    assert_same(own, written)


@pytest.mark.parametrize("seed", some(range(18), 3))
def test_advice_followed_to_the_letter_leaves_what_it_says(seed):
    text, args = source(seed, 5), inputs(seed)

    def audited(text, name):
        f = compiled(text, name)
        return audit_precision(lambda *args: f(*args)[-1], *args)

    report = audited(text, f"advised_{seed}.py")
    exact = {n for n, line in enumerate(text.splitlines(), 1) if _is_exact(line)}
    assert not exact & {loss.origin.line for loss in report.losses if loss.alone}
    left = audited(followed(text, {x.origin.line for x in report.fix}), f"mended_{seed}.py")
    claimed = math.sqrt(report.left) * report.error if report.fix else report.error
    assert left.error <= 1.15 * claimed + 1e-6, f"{text}\n{report}\n{left}"


def _is_exact(line):
    """Whether a line only moves numbers."""
    form = line.partition(" = ")[2]
    names = [f"v{n}" for n in range(6)] + ["x", "y", "z"]
    return any(form == e.format(a=a, b=b) for e in EXACT for a in names for b in names)
