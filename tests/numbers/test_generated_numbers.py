"""Random programs by a plan, against JAX op by op and in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.helpers import needs_numbers, set_x64, some
from tests.support.numeric import compiled, inputs, source
from tests.support.plans_run import Planned, assert_same

pytestmark = [pytest.mark.third_party, needs_numbers]


def relative(x, exact):
    x, exact = np.asarray(x), np.asarray(exact)
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
    assert not planned.program.unexamined
    for line, wide, exact in zip(text.splitlines()[1:], none, wanted):
        assert relative(wide, exact) < 1e-7, line
    assert_same(written, every)
    assert_same(own, written)
