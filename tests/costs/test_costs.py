"""audit_precision on programs that compute wider than they need, and on mended ones."""

import inspect
import json
import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import marked, need
from jax import lax

import dtypeguard
from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_BARRIER
from dtypeguard.testing import check_precision

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_BARRIER, reason="needs JAX >= 0.5"),
]
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def shape(*sizes, dtype=BF16):
    return jax.ShapeDtypeStruct(sizes, dtype)


def shapes(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


X, W, KEY = shape(16, 8), shape(8, 8), jax.eval_shape(lambda: jax.random.key(0))
TABLE = jnp.arange(16.0)[:, None] * np.ones(8, np.float32)


def mean(x):
    return jnp.mean(x.astype(F32))


# Each returns a loss and its arguments. Mended, what the line that ends in "# cause" makes
# is narrow.
def noise(mended):
    """Noise is float32 unless told otherwise: the sketch of this analysis lost it."""

    def f(w, x, key):
        z = jax.random.normal(key, x.shape, BF16 if mended else F32)  # cause
        h = x + 0.1 * z
        return mean(jnp.tanh(h @ w) @ w)

    return f, (W, X, KEY)


def rotary(mended):
    """MaxText pull request 575: the sines and cosines of positions are float32."""

    def f(w, x):
        rates = 1 / 10000 ** (jnp.arange(0, 8, 2) / 8)  # cause
        angles = (jnp.arange(16)[:, None] * rates).astype(BF16 if mended else F32)
        q, k = x @ w, x @ w.T
        turned = []
        for each in (q, k):
            a, b = each[:, :4], each[:, 4:]
            cos, sin = jnp.cos(angles), jnp.sin(angles)
            turned.append(jnp.concatenate([a * cos - b * sin, a * sin + b * cos], 1))
        scores = jax.nn.softmax(turned[0] @ turned[1].T)
        return mean(scores @ x)

    return f, (W, X)


def scalar(mended):
    """JAX pull request 11031: the scalars of NumPy are strongly typed."""

    def f(w, x):
        size = 8**0.5 if mended else np.sqrt(8)
        scores = (x @ w) @ x.T / size  # cause
        return mean(jax.nn.softmax(scores) @ x @ w)

    return f, (W, X)


def labels(mended):
    """One-hot rows that look up an embedding."""

    def f(w, x):
        rows = jax.nn.one_hot(jnp.arange(16) % 8, 8, dtype=BF16 if mended else F32)  # cause
        return mean((x + rows @ w) @ w)

    return f, (W, X)


def positions(mended):
    """A table of positions, added in every turn of a loop."""

    def f(w, x):
        table = jnp.linspace(0, 1, 8, dtype=BF16 if mended else F32)  # cause

        def layer(h, _):
            return jnp.tanh((h + table) @ w).astype(h.dtype), None

        h, _ = lax.scan(layer, x, None, 5)
        return mean(h @ w)

    return f, (W, X)


def weights(mended):
    """JAX issue 7368: one float32 leaf, silent and hard to track down."""

    def f(params, x):
        h = jnp.tanh(x @ params["a"])
        h = jnp.tanh(h @ params["b"])
        return mean(h @ params["c"])

    params = {"a": W, "b": shape(8, 8, dtype=BF16 if mended else F32), "c": W}
    return f, (params, X)


def normalized(mended):
    """A norm in float32 whose result stays so."""

    def f(w, x):
        h = jnp.tanh(x @ w)
        wide = h.astype(F32)  # cause
        h = wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)
        return mean((h.astype(BF16) if mended else h) @ w @ w)

    return f, (W, X)


def softmax(mended):
    """Entropix pull request 39: weights of an attention that stay float32."""

    def f(w, x):
        scores = (x @ w @ x.T).astype(F32)  # cause
        p = jax.nn.softmax(scores)
        return mean((p.astype(BF16) if mended else p) @ x @ w)

    return f, (W, X)


def mask(mended):
    """A float32 mask that multiplies."""

    def f(w, x):
        ones = jnp.ones((16, 16), BF16 if mended else F32)  # cause
        scores = x @ w @ x.T * jnp.tril(ones)
        return mean(scores @ x + jnp.where(x > 0, x @ w, 0.0))

    return f, (W, X)


def closed_over(mended):
    """An array of NumPy from outside."""

    def f(w, x):
        table = TABLE.astype(BF16) if mended else TABLE
        h = x + table  # cause
        return mean(jnp.tanh(h @ w) @ w)

    return f, (W, X)


def delivered(mended):
    """A product that is delivered in float32."""

    def f(w, x):
        kind = None if mended else F32
        h = jnp.dot(x, w, preferred_element_type=kind)  # cause
        return mean(jnp.tanh(h) @ w)

    return f, (W, X)


def carried(mended):
    """A sum in float32 that goes into a product in every turn."""

    def f(w, x):
        start = jnp.zeros((16, 8), BF16 if mended else F32)  # cause

        def step(total, _):
            total = total + x
            return total, mean(total @ w)

        return jnp.sum(lax.scan(step, start, None, 7)[1])

    return f, (W, X)


def started(mended):
    """Zeros that a loop starts with go into a product in the first turn."""

    def f(w, x):
        start = jnp.zeros(8, BF16 if mended else F32)  # cause
        step = lambda h, x: (jnp.tanh(x @ w + h @ w), None)
        return mean(lax.scan(step, start, x)[0])

    return f, (W, X)


def forgotten(mended):
    """Params are float32 and cast where they are used, but for one."""

    def f(params, x):
        params = {name: p.astype(BF16) for name, p in params.items() if name != "b"} | {
            "b": params["b"].astype(BF16) if mended else params["b"]
        }
        return mean(jnp.tanh(x @ params["a"] + params["b"]) @ params["c"])

    wide = shape(8, 8, dtype=F32)
    return f, ({"a": wide, "b": shape(8, dtype=F32), "c": wide}, X)


def named(mended):
    """Names that JAX and Flax have as well: for casts, and for what a gradient computes."""

    def promote_head(h):
        with jax.named_scope("rematted"), jax.named_scope("transpose(h)"):
            return jnp.tanh(h.astype(BF16 if mended else F32))  # cause

    return lambda w, x: mean(promote_head(x @ w) @ w), (W, X)


PLANTED = [
    noise,
    rotary,
    scalar,
    labels,
    positions,
    weights,
    normalized,
    softmax,
    mask,
    closed_over,
    delivered,
    carried,
    started,
    forgotten,
    named,
]


def remat(f):
    return jax.grad(jax.checkpoint(f))


@pytest.mark.parametrize(
    "transform", [None, jax.grad, remat], ids=["loss", "grad", "remat"]
)
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_source_is_found_and_what_mending_it_saves(plant, transform):
    change = transform or (lambda f: f)
    f, args = plant(mended=False)
    report = audit_precision(change(f), *args)
    mended, args = plant(mended=True)
    after = audit_precision(change(mended), *args)
    assert len(report.costs) == 1, report
    (cost,) = report.costs
    if plant in (weights, forgotten):
        assert cost.cause == "params['b']"
    else:
        assert cost.cause.line == marked(plant, "# cause"), report
    total = sum(report.work.flops.values())
    saved = after.work.flops["bfloat16"] - report.work.flops.get("bfloat16", 0)
    assert saved == pytest.approx(cost.saves * total), (report, after)
    assert cost.saves == cost.share > 0.15
    assert sum(after.work.flops.values()) == total
    assert after.costs == ()
    assert after.work.wide == 0
    assert cost.is_cast == (plant in (normalized, softmax, named))
    assert math.isnan(report.error)
    assert math.isnan(cost.harm)


@pytest.mark.parametrize("gradient", [False, True], ids=["loss", "grad"])
def test_two_sources_of_one_product(gradient):
    def program(a, b):
        def f(w, x, key):
            h = x + jax.random.normal(key, x.shape, BF16 if a else F32)
            v = w * (1.5 if b else np.float32(1.5))
            return mean(h @ v) + mean(h @ w)

        return jax.grad(f) if gradient else f

    report = audit_precision(program(False, False), W, X, KEY)
    first, second = report.costs
    assert "random" in first.cause.code
    assert "1.5" in second.cause.code
    total = sum(report.work.flops.values())
    work = lambda a, b: (
        audit_precision(program(a, b), W, X, KEY).work.flops.get("bfloat16", 0) / total
    )
    assert report.work.wide == 1
    assert (work(True, False), work(False, True)) == (first.saves, second.saves)
    assert second.saves == 0 < second.share
    assert work(True, True) == 1 == first.share
    assert first.others == (second.cause.place,)
    assert f"It saves 50% only together with {first.cause.place}" in str(report)
    assert "Write a Python number" in second.remedy
    assert "dtype=jnp.bfloat16" in first.remedy


def test_a_cast_is_advised_where_it_works():
    """At each line that uses what is wide; to an array that the function closes over."""

    def f(w, x):
        table = jnp.cos(jnp.arange(8.0))  # table
        h = x * table  # first
        k = x + table  # second
        return h @ w, k @ w

    place = lambda name: (
        f"test_costs.py:{marked(test_a_cast_is_advised_where_it_works, name)}"
    )
    (cost,) = audit_precision(f, W, X).costs
    assert f"{place('# table')} makes, where " in cost.remedy
    assert f"{place('# first')} and " in cost.remedy
    assert f"{place('# second')} use it: " in cost.remedy
    (cost,) = audit_precision(lambda x: x @ TABLE, shape(8, 16)).costs
    assert "Cast the array that " in cost.remedy


def test_a_call_that_takes_a_dtype_is_told_by_what_it_calls():
    filled = jnp.ones
    makers = lambda: filled(8, F32), lambda: jnp.cos(jnp.arange(8.0))  # not ones(8)
    for make, takes_dtype in zip(makers, (True, False)):
        (cost,) = audit_precision(lambda w, x, make=make: (x * make()) @ w, W, X).costs
        assert ("give the call dtype=jnp.bfloat16" in cost.remedy) == takes_dtype


def test_the_last_lines_that_make_it_are_cast():
    """Of a rotation: angles that are cast themselves lose their positions."""

    def f(w, x):
        rates = 10000 ** -(jnp.arange(8.0) / 8)
        angles = jnp.arange(16.0)[:, None] * rates
        cos = jnp.cos(angles)  # cos
        sin = jnp.sin(angles)  # sin
        return (x * cos + x[:, ::-1] * sin) @ w  # use

    (cost,) = audit_precision(f, W, X).costs
    at = lambda name: marked(test_the_last_lines_that_make_it_are_cast, f"# {name}")
    found = [int(line) for line in re.findall(r"test_costs.py:(\d+)", cost.remedy)]
    assert sorted(found) == [at("cos"), at("sin"), at("use")]
    assert " make, where " in cost.remedy


def test_a_weak_array_that_a_function_closes_over_is_no_source():
    causal = jnp.where(jnp.tril(jnp.ones((16, 16), bool)), 0.0, -1e9)  # weakly typed

    def f(w, x, scale):
        return jax.nn.softmax(x @ x.T / scale + causal) @ (x @ w)  # cause

    (cost,) = audit_precision(lambda w, x: f(w, x, np.sqrt(8)), W, X).costs
    assert cost.cause.line == marked(
        test_a_weak_array_that_a_function_closes_over_is_no_source, "# cause"
    )
    assert "Write a Python number" in cost.remedy
    assert audit_precision(lambda w, x: f(w, x, 2.8), W, X).costs == ()


def test_a_use_that_is_cast_back_is_not_the_line():
    def f(x, scale):
        h = (x * scale).astype(BF16) @ x.T
        return (h * scale) @ x  # cause

    (cost,) = audit_precision(f, shape(16, 8), shape(dtype=F32)).costs
    assert cost.origin.line == marked(
        test_a_use_that_is_cast_back_is_not_the_line, "# cause"
    )


def test_a_layer_without_a_dtype_among_layers_that_have_one():
    """Its bias alone keeps its product wide: the kernel and the bias are named together."""
    nn = need("flax.linen")
    dense = lambda **dtype: nn.Dense(8, **dtype)
    model = nn.Sequential([dense(dtype=BF16), dense(), dense(dtype=BF16)])
    x = shape(16, 8)
    params = jax.eval_shape(model.init, KEY, x)
    (cost,) = audit_precision(model.apply, params, x).costs
    layer = "variables['params']['layers_1']"
    assert cost.cause == f"{layer}['bias'], {layer}['kernel']"
    narrow = jax.tree.map(lambda x: shape(*x.shape), params["params"]["layers_1"])
    params = {"params": {**params["params"], "layers_1": narrow}}
    assert audit_precision(model.apply, params, x).costs == ()


def test_params_beside_what_is_no_array_are_given_narrow():
    model = eqx.nn.MLP(8, 8, 8, 1, key=jax.random.key(0))
    f = lambda model, x: jax.vmap(model)(x)
    (cost,) = audit_precision(f, model, jnp.ones((99, 8), BF16)).costs
    narrow = eval(cost.remedy.partition("bfloat16: ")[2].rstrip("."))
    assert audit_precision(f, narrow, jnp.ones((99, 8), BF16)).costs == ()


def test_harm_of_subnormals():
    """float16 has them, and XLA's `reduce_precision` makes them zero."""
    x, w = jnp.linspace(1e-5, 3e-5, 64, dtype=F16).reshape(8, 8), jnp.eye(8, dtype=F16)
    report = audit_precision(lambda x, w: (x.astype(F32) * 1.5) @ w, x, w)
    (cost,) = report.costs
    assert 0 < cost.harm < 0.01


def test_harm_is_what_mending_does_to_the_outputs():
    f, (params, x) = weights(mended=False)
    keys = iter(jax.random.split(jax.random.key(0), 4))
    draw = lambda s: jax.random.normal(next(keys), s.shape, s.dtype) / 3
    params, x = jax.tree.map(draw, params), draw(x)
    f = lambda params, x: jnp.tanh(jnp.tanh(x @ params["a"]) @ params["b"]).astype(F32)
    report = audit_precision(f, params, x)
    (cost,) = report.costs
    narrow = f({**params, "b": params["b"].astype(BF16)}, x)
    off = np.linalg.norm(narrow - f(params, x)) / np.linalg.norm(f(params, x))
    assert 0.5 * off < cost.harm < 2 * off, (cost.harm, off)
    assert "costs: 50% of the operations of matrix products run wider" in str(report)
    # It would add more than half of the error: that is no advice.
    assert cost.harm > report.error / 2
    assert "Give params['b'] in bfloat16" not in str(report)
    found = json.loads(report.to_json())
    assert found["costs"][0]["harm"] == cost.harm
    assert found["work"]["flops"] == report.work.flops


def test_what_is_right_to_be_wide_has_a_harm_that_says_so():
    """Differences of large numbers: narrow, the product has nothing left of them."""

    def f(w, x):
        large = x.astype(F32) + 300 + jnp.arange(8) / 100
        return (large @ w.astype(F32) - 300 * jnp.sum(w.astype(F32), 0)).astype(x.dtype)

    w = jnp.asarray(np.random.RandomState(0).normal(size=(8, 8)), BF16)
    report = audit_precision(f, w, jnp.zeros((16, 8), BF16))
    assert max(cost.harm for cost in report.costs) > 0.5


def test_what_jax_widens_within_a_line_is_no_cost():
    def f(w, x):
        h = jax.nn.softmax(x @ w) + jnp.mean(x, -1, keepdims=True)
        h = jax.nn.standardize(h) + jax.nn.gelu(h) + jnp.var(h) + jax.nn.logsumexp(h)
        return mean(h @ w)

    report = audit_precision(jax.grad(f), W, X)
    assert report.costs == ()
    assert report.work.wide == 0


def test_an_attention_that_jax_computes_in_float32_inside_is_no_cost():
    def f(w, x):
        q = (x @ w).reshape(1, 16, 2, 4)
        return mean(jax.nn.dot_product_attention(q, q, q))

    report = audit_precision(jax.grad(f), W, X)
    assert report.costs == ()
    assert "no line makes 1% of them so" in str(report) or not report.work.wide


def stack(strays, wrap):
    """A gradient of unrolled layers on one line, with float32 weights at some of them."""

    def f(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return mean(x)

    weights = [shape(8, 8, dtype=F32 if n in strays else BF16) for n in range(5)]
    return audit_precision(jax.grad(wrap(f)), weights, X)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint], ids=["bare", "remat"])
def test_products_of_one_line_are_told_apart(wrap):
    both, first, last = (stack(strays, wrap) for strays in ({1, 3}, {1}, {3}))
    total = sum(both.work.flops.values())
    costs = {cost.cause: cost for cost in both.costs}
    wide = lambda report: report.work.flops["float32"] / total
    assert costs["weights[1]"].share == wide(both) == wide(first)
    assert costs["weights[1]"].saves == pytest.approx(wide(both) - wide(last))
    assert (costs["weights[3]"].share, costs["weights[3]"].saves) == (wide(last), 0)


def test_wide_values_that_meet():
    """Of two that meet before anything narrow, a cast of the result is enough."""

    def angles(w, x, key):
        rates = jnp.linspace(1, 2, 8)
        phases = jax.random.uniform(key, (8,))
        both = rates + phases
        return (x * both) @ w

    (cost,) = audit_precision(angles, W, X, KEY).costs
    assert cost.cause.code == "both = rates + phases"
    assert cost.saves == 1

    def scaled(w, x):
        ones = jnp.ones(8)
        wide = x.astype(F32)
        return (wide * ones) @ w

    costs = audit_precision(scaled, W, X).costs
    assert {cost.cause.code for cost in costs} == {
        "ones = jnp.ones(8)",
        "wide = x.astype(F32)",
    }
    assert [(cost.share, cost.saves) for cost in costs] == [(1, 0), (1, 0)]


def test_calls_and_loops_add_no_source():
    def f(w, x):
        h = x.astype(F32)
        h = jax.jit(jax.nn.relu)(jax.checkpoint(lambda h: jnp.tanh(h @ w))(h))
        h = lax.reduce_precision(lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, h), 8, 10)
        h, _ = lax.scan(lambda h, _: (jnp.tanh(h @ w), None), jnp.sort(h), None, 3)
        n, h = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] @ w), (0, h))
        return h.at[n].add(1) @ w

    report = audit_precision(f, W, X)
    assert [cost.is_cast for cost in report.costs] == [True], report
    assert report.costs[0].saves == report.work.wide == 1
    ones = jnp.ones((8, 8), BF16)
    assert 0 < audit_precision(f, ones / 8, ones).costs[0].harm < 0.1


def matrix(*sizes):
    return jnp.ones(sizes, BF16)


@jax.custom_vjp
def product(x, w):
    return x @ w


product.defvjp(lambda x, w: (x @ w, (x, w)), lambda r, g: (g @ r[1].T, r[0].T @ g))


@jax.custom_jvp
def doubled(x):
    return x @ matrix(8, 8)


doubled.defjvp(lambda x, dx: (doubled(*x), dx[0] @ matrix(8, 8)))
ONE = 2 * 16 * 8 * 8
WORK = {
    "product": (lambda w, x: x @ w, ONE),
    "jit": (lambda w, x: jax.jit(jnp.matmul)(x, w), ONE),
    "scan": (lambda w, x: lax.scan(lambda h, _: (h @ w, None), x, None, 9)[0], 9 * ONE),
    "nested": (
        lambda w, x: lax.fori_loop(
            0, 3, lambda _, h: lax.scan(lambda h, _: (h @ w, None), h, None, 2)[0], x
        ),
        6 * ONE,
    ),
    "while": (
        lambda w, x: lax.while_loop(lambda h: h[0, 0] < 9, lambda h: h @ w, x),
        ONE,
    ),
    "cond": (lambda w, x: lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x), ONE / 2),
    "vmap": (lambda w, x: jax.vmap(lambda row: row @ w)(x), ONE),
    "gradients": (jax.grad(lambda w, x: mean((x @ w) @ w)), 5 * ONE),
    "remat": (jax.grad(lambda w, x: mean(jnp.tanh(remat_(w, x)) @ w)), 9 * ONE),
    "custom_vjp": (jax.grad(lambda w, x: mean(product(x, w))), 3 * ONE),
    "custom_jvp": (lambda w, x: doubled(x) + w[0], ONE),
    "batched": (lambda w, x: jnp.einsum("abc,cd->abd", x.reshape(2, 8, 8), w), ONE),
    "convolution": (
        lambda w, x: lax.conv_general_dilated(
            x.reshape(1, 8, 16), w.reshape(8, 8, 1), (1,), "VALID"
        ),
        ONE,
    ),
}


@jax.checkpoint
def remat_(w, x):
    return jnp.tanh(x @ w) @ w


@pytest.mark.parametrize("name", WORK)
def test_operations_are_counted(name):
    f, count = WORK[name]
    work = audit_precision(f, W, X).work
    assert work.flops == {"bfloat16": count}
    assert work.has_while == (name == "while")
    assert work.narrow == "bfloat16"


@pytest.mark.parametrize("names", [{"i"}, {"i", "j"}])
def test_a_sharded_program_counts_all_shards(names):
    if not hasattr(jax, "shard_map"):
        pytest.skip("needs jax.shard_map")
    automatic = jax.sharding.AxisType.Auto
    mesh = jax.sharding.AbstractMesh((4, 2), ("i", "j"), axis_types=2 * (automatic,))
    whole, split = (jax.sharding.PartitionSpec(each) for each in (None, [*names]))
    options = {"mesh": mesh, "in_specs": (whole, split), "out_specs": split}
    f = jax.shard_map(lambda w, x: x @ w, axis_names=names, **options)
    assert audit_precision(f, W, X).work.flops == {"bfloat16": ONE}


def test_bytes_are_counted():
    work = audit_precision(lambda x: lax.exp(x), shape(10)).work
    assert work.bytes == {"bfloat16": 40}
    looped = lambda x: lax.scan(lambda x, _: (lax.exp(x), None), x, None, 3)[0]
    assert audit_precision(looped, shape(10)).work.bytes == {"bfloat16": 120}


def test_a_while_loop_is_said_to_count_once():
    def f(w, x):
        step = lambda h: jnp.tanh(h @ w)
        return lax.while_loop(lambda h: h[0, 0] < 9, step, x.astype(F32))

    report = audit_precision(f, W, X)
    assert report.costs[0].is_cast
    assert "a while_loop counts once" in str(report)


def test_which_dtype_a_program_should_compute_in():
    """Mixed precision: float32 params, and products in bfloat16 but for one."""
    params = {"a": shape(8, 8, dtype=F32), "b": shape(8, 8, dtype=F32)}

    def f(params, x):
        h = x.astype(BF16) @ params["a"].astype(BF16)
        return mean(jnp.tanh(h) @ params["b"])

    report = audit_precision(f, params, shape(16, 8, dtype=F32))
    assert report.work.narrow == "bfloat16"
    assert [cost.cause for cost in report.costs] == ["params['b']"]
    # The moments of Adam are float32 beside bfloat16 params.
    opt = dtypeguard.guard(optax.adam(1e-3, mu_dtype=F32))
    state = jax.eval_shape(opt.init, shape(8, 8))

    def step(w, state, x):
        updates, state = opt.update(jax.grad(lambda w: mean(x @ w))(w), state, w)
        return optax.apply_updates(w, updates), state

    report = audit_precision(step, W, state, X)
    assert report.work.narrow == "bfloat16"
    assert report.costs == ()
    # A float32 program has no costs, unless it is asked what it would be in bfloat16.
    x = shape(16, 8, dtype=F32)
    f = lambda params, x: mean(jnp.tanh(x @ params["a"]) @ params["b"])
    assert audit_precision(f, params, x).costs == ()
    report = audit_precision(f, params, x, narrow=BF16)
    assert {cost.cause for cost in report.costs} == {"params", "x"}
    assert report.work.wide == 1


def test_a_float64_array_in_a_float32_program():
    f = lambda w, x: mean((x * np.arange(8.0)) @ w)
    x, w = shape(16, 8, dtype=F32), shape(8, 8, dtype=F32)
    report = audit_precision(f, w, x, x64=True)
    assert report.work.narrow == "float32"
    assert report.costs[0].saves == 1
    assert audit_precision(f, w, x).costs == ()


def test_models_of_flax_and_equinox():
    linen = need("flax.linen")
    model = linen.Sequential([linen.Dense(8, dtype=None), jnp.tanh, linen.Dense(8)])
    params = jax.eval_shape(model.init, jax.random.key(0), X)
    loss = lambda params, x: mean(model.apply(params, x))
    report = audit_precision(loss, params, X)
    assert [cost.cause for cost in report.costs] == ["params"], report
    half = jax.tree.map(lambda x: shape(*x.shape), params)
    assert audit_precision(loss, half, X).costs == ()

    mlp = eqx.nn.MLP(8, 8, 8, 1, dtype=BF16, key=jax.random.key(0))
    table = jnp.ones(8, F32)
    f = lambda mlp, x: mean(jax.vmap(mlp)(x * table))
    report = audit_precision(eqx.filter_grad(f), mlp, X)
    assert [cost.saves for cost in report.costs] == [1]
    assert "x * table" in report.costs[0].origin.code


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


def trained(opt):
    """A step of two layers in bfloat16, and its arguments."""
    params = {"a": jnp.ones((8, 8), BF16), "b": jnp.ones((8, 8), BF16)}

    def step(p, o, x):
        grads = jax.grad(lambda p: mean(jnp.tanh(x @ p["a"]) @ p["b"]))(p)
        updates, o = opt.update(grads, o, p)
        return optax.apply_updates(p, updates), o

    return step, [params, opt.init(params), jnp.ones((16, 8), BF16)]


# Functions of wide inputs, their arguments, and what their reports name.
def muon():
    """A state that is all wide; Optax casts its bias correction to the dtype of that."""
    return *trained(optax.contrib.muon(1e-3, mu_dtype=F32)), ["o"]


def one_of_a_state():
    """A state of which the wide momentum alone comes to a product."""
    step, (params, state, x) = trained(optax.adam(1e-3, mu_dtype=F32))

    def f(p, o, x):
        return step(p, o, x)[0], jax.tree.map(lambda x, mu: x @ mu, p, o[0].mu)

    return f, [params, state, x], ["o[0].mu['a']", "o[0].mu['b']"]


def one_of_the_params():
    f = lambda p, x: mean(jnp.tanh(x @ p["a"]) @ p["b"] + p["c"])
    p = {"a": matrix(8, 8), "b": jnp.ones((8, 8)), "c": matrix(8, 8)}
    return f, [p, matrix(8, 8)], ["p['b']"]


def some_of_the_params():
    """All are wide, and those that are cast before they are used matter not."""

    def f(p, x):
        cast = p["c"].astype(x.dtype)
        return mean(jnp.tanh(x @ p["a"]) @ p["b"] + jnp.tanh(x @ cast) @ cast)

    return f, [{n: jnp.ones((8, 8)) for n in "abc"}, matrix(8, 8)], ["p['a'], p['b']"]


def an_array():
    return lambda x, w: mean(x @ w), [matrix(8, 8), jnp.ones((8, 8))], ["w"]


INPUTS = [muon, one_of_a_state, one_of_the_params, some_of_the_params, an_array]


@pytest.mark.parametrize("plant", INPUTS, ids=lambda plant: plant.__name__)
def test_an_input_is_named_by_its_path_and_its_remedy_works_to_the_letter(plant):
    f, args, causes = plant()
    report = audit_precision(f, *shapes(args))
    assert [cost.cause for cost in report.costs] == causes
    assert all(cost.saves == cost.share > 0.05 for cost in report.costs)
    names = dict(zip(inspect.signature(f).parameters, args))
    for cost in report.costs:
        made = cost.remedy.partition(f" in {report.work.narrow}: ")[2].removesuffix(".")
        for path in cost.cause.split(", "):
            code = f"{path}{made[1:].removesuffix(' of each')}" if "each" in made else made
            narrow = eval(code, {**names, "jax": jax, "jnp": jnp})
            old = eval(path, names)
            swap = lambda x, old=old, narrow=narrow: narrow if x is old else x
            args = jax.tree.map(swap, args, is_leaf=lambda x, old=old: x is old)
    assert audit_precision(f, *shapes(args)).costs == ()


def test_a_policy_that_widens_is_named():
    reports = []
    for policy in (dtypeguard.Policy(compute_dtype=F32), None):
        opt = dtypeguard.guard(optax.contrib.muon(1e-3), policy=policy)
        f, args = trained(opt)
        reports.append(audit_precision(f, *shapes(args)))
    report, mended = reports
    (cast,) = [cost for cost in report.costs if cost.is_cast]
    assert "Leave out the compute_dtype of the policy at " in cast.remedy
    assert mended.costs == ()


def test_a_function_that_is_another_one_when_it_is_traced_again():
    """It asks for a dtype, or counts its calls: what it was at first tells the costs."""
    stray = np.ones((8, 8), np.float32)
    calls = []

    def by_dtype(x, w):
        return x @ w if x.dtype == F32 else x @ (w * stray) @ (w * stray)

    def by_call(x, w):
        calls.append(x)
        return x @ w if len(calls) == 1 else x @ w @ (w * stray)

    types = jax.ShapeDtypeStruct((4, 8), F32), jax.ShapeDtypeStruct((8, 8), BF16)
    for function in (by_dtype, by_call):
        (cost,) = audit_precision(function, *types).costs
        assert (cost.cause, cost.share, cost.saves) == ("x", 1, 1)
