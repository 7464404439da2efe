"""audit_precision on programs that compute wider than they need, and on mended ones."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import dtypeguard
from dtypeguard import audit_precision
from dtypeguard.testing import check_precision
from tests.support.dtypes import BF16, F32
from tests.support.helpers import marked, users_programs

pytestmark = users_programs


def shape(*sizes, dtype=BF16):
    return jax.ShapeDtypeStruct(sizes, dtype)


X, W, WIDE = shape(16, 8), shape(8, 8), shape(8, 8, dtype=F32)
KEY = jax.eval_shape(lambda: jax.random.key(0))


def mean(x):
    return jnp.mean(x.astype(F32))


# Each returns a loss and its arguments. Mended, what the line that ends in "# cause" makes
# is narrow.
def noise(mended):
    """Noise is float32 unless told otherwise: the sketch of this analysis lost it."""

    def f(w, x, key):
        z = jax.random.normal(key, x.shape, BF16 if mended else F32)  # cause
        return mean(jnp.tanh((x + 0.1 * z) @ w) @ w)

    return f, (W, X, KEY)


def scalar(mended):
    """JAX pull request 11031: the scalars of NumPy are strongly typed."""

    def f(w, x):
        size = 8**0.5 if mended else np.sqrt(8)
        scores = (x @ w) @ x.T / size  # cause
        return mean(jax.nn.softmax(scores) @ x @ w)

    return f, (W, X)


def delivered(mended):
    """A product that is delivered in float32."""

    def f(w, x):
        h = jnp.dot(x, w, preferred_element_type=None if mended else F32)  # cause
        return mean(jnp.tanh(h) @ w)

    return f, (W, X)


def forgotten(mended):
    """Params are float32 and cast where they are used, but for one."""

    def f(params, x):
        a, b, c = (params[name].astype(BF16) for name in "abc")
        return mean(jnp.tanh(x @ a + (b if mended else params["b"])) @ c)

    return f, ({"a": WIDE, "b": shape(8, dtype=F32), "c": WIDE}, X)


PLANTED = [noise, scalar, delivered, forgotten]


def remat(f):
    return jax.grad(jax.checkpoint(f))


@pytest.mark.parametrize("change", [lambda f: f, remat], ids=["loss", "gradient"])
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_line_is_found_and_its_share_is_what_mending_it_saves(plant, change):
    f, args = plant(mended=False)
    report = audit_precision(change(f), *args)
    mended, args = plant(mended=True)
    after = audit_precision(change(mended), *args)
    (cost,) = report.work.costs
    if plant is forgotten:
        assert cost.cause == "params['b']"
    else:
        assert cost.cause.line == marked(plant, "# cause"), report
    before, total = report.work.flops, sum(after.work.flops.values())
    assert sum(before.values()) == total
    saved = after.work.flops["bfloat16"] - before.get("bfloat16", 0)
    assert saved == pytest.approx(cost.share * total), (report, after)
    assert cost.share > 0.15
    assert after.work.costs == ()
    assert after.work.wide == 0
    assert math.isnan(report.error)


def test_what_jax_widens_within_a_line_is_no_cost():
    def f(w, x):
        h = jax.nn.softmax(x @ w) + jnp.mean(x, -1, keepdims=True)
        h = jax.nn.standardize(h) + jax.nn.gelu(h) + jnp.var(h) + jax.nn.logsumexp(h)
        return mean(h @ w)

    report = audit_precision(jax.grad(f), W, X)
    assert report.work.costs == ()
    assert report.work.wide == 0


def test_calls_and_loops_add_no_source():
    def f(w, x):
        h = x.astype(F32)
        h = jax.jit(jax.nn.relu)(jax.checkpoint(lambda h: jnp.tanh(h @ w))(h))
        h = lax.reduce_precision(lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, h), 8, 10)
        h, _ = lax.scan(lambda h, _: (jnp.tanh(h @ w), None), jnp.sort(h), None, 3)
        n, h = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] @ w), (0, h))
        return h.at[n].add(1) @ w

    report = audit_precision(f, W, X)
    (cost,) = report.work.costs
    assert cost.cause.code == "h = x.astype(F32)"
    assert cost.share == report.work.wide == 1


@jax.checkpoint
def layer(w, x):
    return jnp.tanh(x @ w) @ w


@jax.custom_vjp
def product(x, w):
    return x @ w


product.defvjp(lambda x, w: (x @ w, (x, w)), lambda r, g: (g @ r[1].T, r[0].T @ g))


ONE = 2 * 16 * 8 * 8
WORK = {
    "scan": (lambda w, x: lax.scan(lambda h, _: (h @ w, None), x, None, 9)[0], 9 * ONE),
    "while": (
        lambda w, x: lax.while_loop(lambda h: h[0, 0] < 9, lambda h: h @ w, x),
        ONE,
    ),
    "cond": (lambda w, x: lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x), ONE / 2),
    "gradients": (jax.grad(lambda w, x: mean((x @ w) @ w)), 5 * ONE),
    "remat": (jax.grad(lambda w, x: mean(jnp.tanh(layer(w, x)) @ w)), 9 * ONE),
    "custom_vjp": (jax.grad(lambda w, x: mean(product(x, w))), 3 * ONE),
    "batched": (lambda w, x: jnp.einsum("abc,cd->abd", x.reshape(2, 8, 8), w), ONE),
    "convolution": (
        lambda w, x: lax.conv_general_dilated(
            x.reshape(1, 8, 16), w.reshape(8, 8, 1), (1,), "VALID"
        ),
        ONE,
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_operations_are_counted(name):
    f, count = WORK[name]
    work = audit_precision(f, W, X).work
    assert work.flops == {"bfloat16": count}
    assert work.narrow == "bfloat16"


@pytest.mark.parametrize("names", [{"i"}, {"i", "j"}])
def test_a_sharded_program_counts_all_shards(names):
    automatic = jax.sharding.AxisType.Auto
    mesh = jax.sharding.AbstractMesh((4, 2), ("i", "j"), axis_types=2 * (automatic,))
    whole, split = (jax.sharding.PartitionSpec(each) for each in (None, [*names]))
    f = jax.shard_map(
        lambda w, x: x @ w,
        axis_names=names,
        mesh=mesh,
        in_specs=(whole, split),
        out_specs=split,
    )
    assert audit_precision(f, W, X).work.flops == {"bfloat16": ONE}


def test_which_dtype_a_program_should_compute_in():
    """Mixed precision: float32 params, and products in bfloat16 but for one."""
    params = {"a": WIDE, "b": WIDE}

    def f(params, x):
        return mean(jnp.tanh(x.astype(BF16) @ params["a"].astype(BF16)) @ params["b"])

    report = audit_precision(f, params, shape(16, 8, dtype=F32))
    assert report.work.narrow == "bfloat16"
    assert [cost.cause for cost in report.work.costs] == ["params['b']"]
    # The moments of Adam are float32 beside bfloat16 params.
    opt = dtypeguard.guard(optax.adam(1e-3, mu_dtype=F32))
    state = jax.eval_shape(opt.init, W)

    def step(w, state, x):
        updates, state = opt.update(jax.grad(lambda w: mean(x @ w))(w), state, w)
        return optax.apply_updates(w, updates), state

    report = audit_precision(step, W, state, X)
    assert report.work.narrow == "bfloat16"
    assert report.work.costs == ()
    # So are a master copy and both moments: a quarter of the inputs is in bfloat16.
    f = lambda w, *of_adam: (mean(w.astype(F32) @ w), of_adam)
    report = audit_precision(f, W, WIDE, WIDE, WIDE)
    assert report.work.narrow == "bfloat16"
    # A float32 program has no costs, unless it is asked what it would be in bfloat16.
    x = shape(16, 8, dtype=F32)
    f = lambda params, x: mean(jnp.tanh(x @ params["a"]) @ params["b"])
    assert audit_precision(f, params, x).work.costs == ()
    report = audit_precision(f, params, x, narrow=BF16)
    assert {cost.cause for cost in report.work.costs} == {"params['a']", "params['b']", "x"}
    assert report.work.wide == 1


def test_as_a_test():
    f, args = noise(mended=False)
    check_precision(f, *args, max_wide_work=1)
    with pytest.raises(AssertionError, match=r"f has 100% of its matrix products wider"):
        check_precision(f, *args, max_wide_work=0.1)
    f, args = noise(mended=True)
    check_precision(f, *args, max_wide_work=0)


def test_it_runs_nothing():
    def f(x):
        jax.debug.callback(lambda: pytest.fail("it ran"))
        return x * 2

    report = audit_precision(f, X)
    assert math.isnan(report.error)
    assert str(report) == (
        "precision: there are no matrix products to count. Nothing was run."
    )


def test_products_of_one_line_have_causes_of_their_own():
    def f(weights, x):
        for w in weights:
            x = (x @ w).astype(BF16)
        return mean(x)

    report = audit_precision(f, [WIDE, WIDE], X, narrow=BF16)
    shares = {cost.cause: cost.share for cost in report.work.costs}
    assert shares == {"weights[0]": 0.5, "weights[1]": 0.5}
