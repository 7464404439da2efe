"""What a rule of a `custom_vjp` or `custom_jvp` computes has the line of the call.

JAX gives it that line; a trace of a function of its own may have that of another's rule.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtypeguard import audit, explain
from tests.support.dtypes import BF16

pytestmark = pytest.mark.third_party


def with_rule(backward):
    """A sum with a backward pass."""
    function = jax.custom_vjp(lambda x: jnp.sum(x))
    function.defvjp(lambda x: (jnp.sum(x), x), backward)
    return function


def a_backward_pass(p):
    backward = lambda x, g: (x * np.float32(2),)  # the rule
    grads = jax.grad(with_rule(backward))(p)  # the call
    return p - grads  # the step


def a_custom_gradient(p):
    @jax.custom_gradient
    def function(x):
        return jnp.sum(x), lambda g: g * jnp.ones(3)  # the rule

    grads = jax.grad(function)(p)  # the call
    return p - grads  # the step


@pytest.mark.parametrize("step", [a_backward_pass, a_custom_gradient])
def test_the_lines_of_an_audit(step):
    for _ in range(2):  # JAX has kept the traces of the second
        (drift,) = audit(step, jnp.ones(3, BF16)).drifts
        assert drift.origin.code.endswith("# the step")
        # A constant has its own line, where values are recorded.
        assert drift.cause.users.code.endswith(("# the call", "# the rule"))


@pytest.mark.skipif(jax.__version_info__ < (0, 8), reason="a trace has the branch alone")
def test_what_jax_kept_of_a_rule_has_the_line_of_its_caller():
    """JAX 0.12 keeps the trace of `linspace` with the line of the call of the rule."""

    @jax.jit
    def choose(x):
        other = jnp.linspace(0, 1, 5)  # made here
        joined = lambda x: lax.concatenate([x, other], 0)
        return lax.cond(True, joined, joined, x)

    def backward(x, g, perturbed, _):
        return x * jnp.linspace(0, 1, 5)

    function = eqx.filter_custom_vjp(lambda x: jnp.sum(x))
    function.def_fwd(lambda perturbed, x: (jnp.sum(x), x))
    function.def_bwd(backward)
    jax.make_jaxpr(lambda p: eqx.filter_grad(function)(p))(jnp.ones(5))
    with pytest.raises(TypeError) as raised, explain():
        choose(jnp.ones(5, BF16))
    (note,) = raised.value.__notes__
    assert "made here" in note
    assert "filter_grad" not in note
