"""Errors over the types of tangents and cotangents name the rule, or the argument."""

import runpy
from types import FunctionType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from advice import applied, line, note_on
from jax import lax

BF16 = jnp.bfloat16


def of_two_lambdas():
    @jax.custom_vjp
    def scaled(x, w):
        return x * w

    def backward_of(wide):
        rule = lambda r, g: (g * r[1], (g * r[0]).astype(wide))  # the rules
        scaled.defvjp(lambda x, w: (x * w, (x, w)), rule)

    backward_of(jnp.float32)
    x, w = jnp.ones(3, BF16), jnp.ones(3, BF16)
    return jax.grad(lambda w: (scaled(x, w).sum() + w.sum()).astype(jnp.float32))(w)


# Two rules on one line, with parameters of the same names.
_ONE_LINE = """
import jax, jax.numpy as jnp
@jax.custom_vjp
def scaled(a, b):
    return a * b
scaled.defvjp(lambda a, b: (a * b, (a, b)), lambda a, b: (b * a[1], jnp.float32(b * a[0])))
x, w = jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.bfloat16)
run = lambda: jax.grad(lambda w: (scaled(x, w).sum() + w.sum()).astype(jnp.float32))(w)
"""


def test_a_rule_that_is_a_lambda():
    note = note_on(of_two_lambdas)
    assert note.startswith("dtypeguard: a lambda returns a cotangent in another")
    assert line(__file__, "the rules") in note
    assert "self[" not in note
    assert "jax.tree.map" not in note
    way = "return each cotangent in the dtype of its argument, as x.astype(jnp.bfloat16)"
    assert f"At {line(__file__, 'the rules')} {way}" in note
    mended = applied(of_two_lambdas, ("(g * r[0]).astype(wide)", "(g * r[0]).astype(BF16)"))
    assert mended().dtype == BF16


def test_two_rules_on_one_line(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(_ONE_LINE)
    note = note_on(runpy.run_path(str(path))["run"])
    assert f"At {path}:6 return each cotangent in the dtype of its argument" in note


def of_a_product():
    @jax.custom_vjp
    def scaled(x, w):
        return x * w

    def backward(given, g):
        x, w = given
        return g * w, (g * x).astype(jnp.float32)  # a rule

    scaled.defvjp(lambda x, w: (x * w, (x, w)), backward)
    x = jnp.ones(3, BF16)
    return jax.grad(lambda w: scaled(x, w * w).sum().astype(jnp.float32))(x)


def test_a_cotangent_that_jax_multiplies():
    note = note_on(of_a_product)
    assert note.startswith("dtypeguard: backward returns a cotangent in another")
    assert (
        f"At {line(__file__, 'a rule')} return each cotangent in the dtype of its" in note
    )


def of_a_loop_around_a_rule():
    @jax.custom_vjp
    def clipped(x):
        return jnp.clip(x, -1, 1)

    def backward(x, g):
        return (g.astype(jnp.float32),)  # a wide rule

    clipped.defvjp(lambda x: (clipped(x), x), backward)

    def step(w, x):
        return w - jax.grad(lambda w: jnp.sum(clipped(w * x)))(w), None

    return jax.lax.scan(step, jnp.ones(3, BF16), jnp.ones((2, 3), BF16))[0]


def test_what_the_rest_of_a_function_computes_is_no_cotangent():
    note = note_on(of_a_loop_around_a_rule)
    assert "a cotangent  float32[3]" in note
    way = "return each cotangent in the dtype of its argument, as x.astype(jnp.bfloat16)"
    assert f"At {line(__file__, 'a wide rule')} {way}" in note
    new = "(g.astype(jnp.float32).astype(BF16),)"
    old = "(g.astype(jnp.float32),)"
    assert applied(of_a_loop_around_a_rule, (old, new))().dtype == BF16


def of_an_int_tangent():
    return jax.jvp(lambda x, y: x * y, (3.0, 5), (1.0, 0))  # whole


def test_the_tangent_of_an_int():
    """JAX issue 4433: it says that the dtype has to be float0, and not how to write one."""
    note = note_on(of_an_int_tangent)
    place, new = line(__file__, "whole"), "np.zeros((), jax.dtypes.float0)"
    assert note.startswith("dtypeguard: jax.jvp has an argument of a type that it does not")
    assert f"At {place} write {new} in place of 0.\nTried: the types then agree." in note
    assert applied(of_an_int_tangent, ("(1.0, 0)", f"(1.0, {new})"))() == (15.0, 5.0)
    alone = FunctionType(of_an_int_tangent.__code__, {"jax": jax})  # without NumPy
    assert "Tried: the types then agree." in note_on(alone)


def of_int_tangents():
    counts, other = jnp.arange(3), jnp.arange(3)
    scale = lambda x, n: x * n["seen"].astype(x.dtype)
    return jax.jvp(scale, (jnp.ones(3), {"seen": counts}), (jnp.ones(3), {"seen": other}))


def test_the_tangent_of_an_array_of_ints():
    note = note_on(of_int_tangents)
    new = "np.zeros(np.shape(other), jax.dtypes.float0)"
    assert f"write {new} in place of other.\n" in note
    assert "counts" not in note.splitlines()[1]
    mended = applied(of_int_tangents, ('"seen": other', f'"seen": {new}'))
    assert np.array_equal(mended()[1], [0, 1, 2])


def of_a_branch():
    square = lambda z: z**2

    @jax.jit
    def derivative(x):
        return lax.cond(
            jnp.iscomplex(x)[0],
            jax.jacfwd(square, holomorphic=True),
            jax.jacfwd(square),
            x,
        )

    return derivative(jnp.ones(1))


def test_holomorphic_in_a_branch():
    """JAX issue 14216: both branches are traced, whatever the predicate is."""
    note = note_on(of_a_branch)
    old, new = "jax.jacfwd(square, holomorphic=True)", "jax.jacfwd(square)"
    assert f" write {new} in place of {old}.\n" in note
    assert "complex64" not in note  # of the other branch, which takes no complex number
    assert applied(of_a_branch, (old, new))() == 2.0


def of_a_gradient():
    x = jnp.ones(3)  # real
    return jax.grad(lambda x: (x**2).sum(), holomorphic=True)(x)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "jax.grad(lambda x: (x**2).sum(), holomorphic=True)",
            "jax.grad(lambda x: (x**2).sum())",
        ),
        ("True)(x)", "True)(x.astype(jnp.complex64))"),
    ],
)
def test_holomorphic_of_a_real_array(old, new):
    note = note_on(of_a_gradient)
    assert line(__file__, "real") in note
    assert "write x.astype(jnp.complex64) in place of x" in note
    assert new.removeprefix("True)(").removesuffix(")") in note
    assert jnp.all(applied(of_a_gradient, (old, new))() == 2)


def of_a_wide_rule():
    @jax.custom_jvp
    def wave(x):
        return jnp.sin(x)

    @wave.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        scale = jnp.ones(3)  # wide
        return wave(x), jnp.cos(x).astype(scale.dtype) * t.astype(scale.dtype)  # of it

    x = jnp.ones(3, BF16)
    return jax.jvp(wave, (x,), (x,))[1]


def of_a_pair():
    @jax.custom_jvp
    def pair(x, w):
        return jnp.sin(x), w

    @pair.defjvp
    def rule(primals, tangents):
        (x, w), (_, v) = primals, tangents
        return pair(x, w), (v.astype(jnp.float32), v)  # of two

    x = jnp.ones(3, BF16)
    return jax.jit(jax.grad(lambda x: pair(x, x)[0].astype(jnp.float32).sum()))(x)


@pytest.mark.parametrize(
    ("program", "mark", "old"),
    [
        (of_a_wide_rule, "of it", "jnp.cos(x).astype(scale.dtype) * t.astype(scale.dtype)"),
        (of_a_pair, "of two", "v.astype(jnp.float32)"),
    ],
)
def test_a_rule_of_custom_jvp(program, mark, old):
    note = note_on(program)
    assert note.startswith("dtypeguard: rule returns a tangent in another dtype than its")
    new = f"({old})" if " * " in old else old
    new = f"{new}.astype(jnp.bfloat16)"
    assert f"At {line(__file__, mark)} write {new} in place of {old} (not tried)." in note
    assert applied(program, (old, new))().dtype == BF16


def of_a_transpose():
    double = jax.linear_transpose(lambda x: x * 2, jnp.ones(3, BF16))
    wide = jnp.ones(3)  # cotangent
    return double(wide)[0]


def of_an_export():
    export = pytest.importorskip("jax.export").export
    exported = export(jax.jit(lambda x: x * 2))(jnp.ones(3, BF16))
    wide = jnp.ones(3)  # argument
    return exported.call(wide)


@pytest.mark.parametrize(
    ("program", "mark", "call"),
    [(of_a_transpose, "cotangent", "double"), (of_an_export, "argument", "exported.call")],
)
def test_what_is_given_to_what_was_traced_before(program, mark, call):
    note = note_on(program)
    assert f"float32[3]  {line(__file__, mark)}" in note
    new = "wide.astype(jnp.bfloat16)"
    assert f"write {new} in place of wide.\nTried: the types then agree." in note
    assert applied(program, (f"{call}(wide)", f"{call}({new})"))().dtype == BF16


def of_one_of_two():
    outputs = lambda x: {"a": x, "b": x.astype(BF16)}
    _, pullback = jax.vjp(outputs, jnp.ones(3))
    g, h = jnp.ones(3), jnp.ones(3)
    return pullback({"a": g, "b": h})[0]


def test_one_of_two_cotangents():
    """JAX does not say which of them it means; a trial does."""
    note = note_on(of_one_of_two)
    assert "write h.astype(jnp.bfloat16) in place of h." in note
    assert "in place of g" not in note
    assert applied(of_one_of_two, ('"b": h', '"b": h.astype(jnp.bfloat16)'))().shape == (3,)


def of_several_on_a_line():
    x, i = jnp.ones(3), jnp.arange(3)  # both
    return jax.grad(lambda i: (x * i).sum())(i)


def test_another_array_of_the_line_is_left_alone():
    note = note_on(of_several_on_a_line)
    assert line(__file__, "both") in note
    assert "jnp.ones" not in note.splitlines()[-2]
    assert "write i.astype(jnp.float32) in place of i " in note
