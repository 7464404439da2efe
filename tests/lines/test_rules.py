"""What a rule of a `custom_vjp` or `custom_jvp` computes has the rule's own lines.

JAX gives all of it the line of the call that the rule belongs to.
"""

import linecache
import os
import pathlib
import sys
import sysconfig

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import needs_record, set_x64
from jax import lax

from dtypeguard import audit, explain

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
with explain():  # it is recorded
    DOUBLE = np.float32(2)  # the factor


def with_rule(backward):
    """A sum with a backward pass."""
    function = jax.custom_vjp(lambda x: jnp.sum(x))
    function.defvjp(lambda x: (jnp.sum(x), x), backward)
    return function


def doubled(x, g):
    return (x * DOUBLE,)  # the product


def an_operand(p):
    def backward(x, g):
        wide = x.astype(F32)  # the operand
        return (wide * g,)

    return p - jax.grad(with_rule(backward))(p)  # the step


def a_function_of_a_backward_pass(p):
    value, pull = jax.vjp(with_rule(doubled), p)
    return pull(value)[0]


def a_call_in_a_helper(p):
    def scaled(x):
        ramp = jnp.arange(3) / 2  # the operand
        return x * ramp

    backward = lambda x, g: (scaled(x),)
    return p - jax.grad(with_rule(backward))(p)  # the step


def a_scan(p):
    def backward(x, g):
        body = lambda c, _: (c, c * DOUBLE)
        return (lax.scan(body, x, None, 2)[1][0],)

    return p - jax.grad(lambda x: with_rule(backward)(x))(p)  # the step


def a_scan_in_a_scan(p):
    def backward(x, g):
        inner = lambda c, _: (c, c * DOUBLE)
        outer = lambda c, _: (c, lax.scan(inner, c, None, 2)[1][0])
        return (lax.scan(outer, x, None, 2)[1][0],)

    return p - jax.grad(with_rule(backward))(p)  # the step


def a_while_loop(p):
    def backward(x, g):
        start = x.astype(F32)  # the operand
        return (lax.while_loop(lambda c: c[0] < 5, lambda c: c + x, start),)

    return p - jax.grad(with_rule(backward))(p)  # the step


def jitted(p):
    grads = jax.jit(jax.grad(lambda x: with_rule(doubled)(x)))(p)
    return p - grads  # the step


def inside_a_scan(p):
    gradient = jax.grad(with_rule(doubled))
    return p - lax.scan(lambda c, _: (c, gradient(c)), p, None, 2)[1][0]  # the step


def under_vmap(p):
    grads = jax.vmap(jax.grad(with_rule(doubled)))(p[None])
    return p - grads[0]  # the step


def checkpointed(p):
    return p - jax.grad(jax.checkpoint(with_rule(doubled)))(p)  # the step


def twice_differentiated(p):
    def backward(x, g):
        wide = jnp.asarray(0.5, F32)  # the operand
        return (x * x * wide,)

    gradient = jax.jit(jax.grad(with_rule(backward)))
    return p - jax.jvp(gradient, (p,), (p,))[1]  # the step


def custom_gradient(p):
    @jax.custom_gradient
    def function(x):
        def backward(g):
            wide = jnp.ones(3)  # the operand
            return g * wide

        return jnp.sum(x), backward

    return p - jax.grad(function)(p)  # the step


def of_equinox(p):
    function = eqx.filter_custom_vjp(lambda x: jnp.sum(x))
    function.def_fwd(lambda perturbed, x: (jnp.sum(x), x))

    @function.def_bwd
    def backward(x, g, perturbed, _):
        wide = jnp.linspace(0, 1, 3)  # the operand
        return x * wide

    return p - eqx.filter_grad(function)(p)  # the step


def a_rule_of_a_custom_jvp(p):
    function = jax.custom_jvp(lambda x: jnp.sin(x.astype(F32)))

    @function.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        wide = jnp.linspace(0, 1, 3)  # the operand
        return function(x), t * wide

    _, tangent = jax.jvp(jax.jit(lambda x: function(x)), (p,), (p,))
    return p - tangent  # the step


OWN = {
    an_operand: ("# the step", "# the operand"),
    a_function_of_a_backward_pass: ("# the product", "# the factor"),
    a_call_in_a_helper: ("# the step", "# the operand"),
    a_scan: ("# the step", "# the factor"),
    a_scan_in_a_scan: ("# the step", "# the factor"),
    a_while_loop: ("# the step", "# the operand"),
    jitted: ("# the step", "# the factor"),
    inside_a_scan: ("# the step", "# the factor"),
    under_vmap: ("# the step", "# the factor"),
    checkpointed: ("# the step", "# the factor"),
    twice_differentiated: ("# the step", "# the operand"),
    custom_gradient: ("# the step", "# the operand"),
    of_equinox: ("# the step", "# the operand"),
    a_rule_of_a_custom_jvp: ("# the step", "# the operand"),
}


def functions_lines(step):
    """The lines of a function, and that of the factor."""
    code = step.__code__
    lines = pathlib.Path(__file__).read_text().splitlines()
    last = max(line for *_, line in code.co_lines() if line)
    inner = [c for c in code.co_consts if hasattr(c, "co_lines")]
    last = max([last, *(line for c in inner for *_, line in c.co_lines() if line)])
    return {line: lines[line - 1] for line in range(code.co_firstlineno, last + 1)}


@pytest.mark.parametrize("step", OWN, ids=lambda step: step.__name__)
def test_the_lines_of_an_audit(step):
    for _ in range(2):  # JAX has kept the traces of the second
        (drift,) = audit(step, jnp.ones(3, BF16)).drifts
        for line, mark in zip((drift.origin, drift.cause), OWN[step]):
            if mark in ("# the factor", "# the operand") and sys.version_info < (3, 12):
                continue
            assert line.code.endswith(mark)
            if mark in ("# the step", "# the operand"):
                assert functions_lines(step)[line.line].endswith(mark)


@needs_record
@pytest.mark.parametrize("step", [an_operand, under_vmap])
def test_the_lines_of_a_note(step):
    with pytest.raises(TypeError, match="carry") as raised, explain():
        lax.scan(lambda p, _: (step(p), None), jnp.ones(3, BF16), None, 2)
    (note,) = raised.value.__notes__
    for mark in OWN[step]:
        assert f"{mark}\n" in note


def test_the_operations_in_64_bits():
    def step(p):
        def backward(x, g):
            wide = np.ones(3)
            return ((x * wide).astype(x.dtype),)  # in 64 bits

        return p - jax.grad(with_rule(backward))(p)

    with set_x64(True):
        report = audit(step, jnp.ones(3, F32))
    assert report.ok
    assert report.wide_operations
    for found in report.wide_operations:
        assert found.origin.code.endswith("# in 64 bits")


def test_a_rule_of_a_package_has_the_line_of_the_call(monkeypatch):
    source = "def backward(x, g):\n    return (x * DOUBLE,)\n"
    file = os.path.join(sysconfig.get_path("purelib"), "ruling", "rules.py")
    lines = source.splitlines(True)
    monkeypatch.setitem(linecache.cache, file, (len(source), None, lines, file))
    exec(compile(source, file, "exec"), ruling := {"DOUBLE": DOUBLE})

    def step(p):
        function = with_rule(ruling["backward"])
        grads = jax.grad(lambda x: function(x))(p)  # the call
        return p - grads

    (drift,) = audit(step, jnp.ones(3, BF16)).drifts
    assert drift.cause.code.endswith("# the call")


def test_a_rule_that_raises_leaves_jax_as_it_was():
    def backward(x, g):
        if first:
            return doubled(first.pop(), g)
        raise ValueError("only once")

    def step(p):
        return p - jax.grad(with_rule(backward))(p)  # the step

    first = [jnp.ones(3, BF16)]
    (drift,) = audit(step, jnp.ones(3, BF16)).drifts
    assert drift.origin.code.endswith("# the step")
    (equation,) = jax.make_jaxpr(lambda x: x * 2)(1.0).eqns
    files = [frame.file_name for frame in equation.source_info.traceback.frames]
    assert __file__ in files


@pytest.mark.skipif(jax.__version_info__ < (0, 8), reason="its tracers have no equation")
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
