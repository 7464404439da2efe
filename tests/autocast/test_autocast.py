"""What autocast promises: types, signature, gradients, what stays as written."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dots import dots, equations
from helpers import need
from jax import lax

import dtypeguard
from dtypeguard import Plan

_BFLOAT16, _FLOAT16 = jnp.dtype("bfloat16"), jnp.dtype("float16")
_W, _X = jnp.eye(8) + 0.1, jnp.linspace(-1.0, 1.0, 32).reshape(4, 8)
_ALL = Plan(_BFLOAT16, "all")


def layer(w, x):
    return jnp.tanh(x @ w)


def loss(w, x):
    return jnp.mean(layer(w, layer(w, x)) ** 2)


_NARROW = ("bfloat16",) * 3
_WIDE = ("float32",) * 3


def test_signature_and_attributes():
    @dtypeguard.autocast(dtype=jnp.bfloat16)
    def model(w, x, *, scale: float = 1.0):
        """Documented."""
        return x @ w * scale

    assert str(inspect.signature(model)) == "(w, x, *, scale: float = 1.0)"
    assert model.__doc__ == "Documented."
    assert model.plan == Plan(jnp.bfloat16)
    assert model(_W, _X, scale=2.0).dtype == jnp.float32


def test_decorated_method():
    class Model:
        @dtypeguard.autocast(plan=jnp.bfloat16)
        def __call__(self, w, x):
            return x @ w

    assert dots(Model(), _W, _X) == [_NARROW]


def test_plan_by_path_and_name(tmp_path):
    Plan(jnp.bfloat16).save(tmp_path / "a.plan")
    for plan in (tmp_path / "a.plan", str(tmp_path / "a.plan"), "bfloat16", _BFLOAT16):
        assert dots(dtypeguard.autocast(layer, plan), _W, _X) == [_NARROW]


def test_weights_have_gradients_added_up_in_float32():
    gradient = jax.grad(lambda w, x: dtypeguard.autocast(loss, _ALL)(w, x), (0, 1))
    of_weight = ("bfloat16", "bfloat16", "float32")
    # Forward twice; then for weights twice, for the layer before, for the argument.
    assert sorted(dots(gradient, _W, _X)) == [*[_NARROW] * 3, *[of_weight] * 3]
    of_gradient = dtypeguard.autocast(jax.grad(loss, (0, 1)), _ALL)
    assert sorted(dots(of_gradient, _W, _X)) == [*[_NARROW] * 2, *[of_weight] * 4]


def test_shared_weight_has_its_cotangents_added_up_in_float32():
    def shared(w, x):
        return jnp.sum(lax.scan(lambda x, _: (x + 1e-2 * x @ w, None), x, None, 64)[0])

    exact = jax.grad(shared)(_W, _X)
    error = lambda g: jnp.linalg.norm(g - exact) / jnp.linalg.norm(exact)
    for default in ("products", "all"):
        cast = dtypeguard.autocast(shared, Plan(_BFLOAT16, default))
        added = [
            eqn.outvars[0].aval
            for eqn in equations(jax.make_jaxpr(jax.grad(cast))(_W, _X))
            if eqn.primitive.name in ("add_any", "add") and eqn.outvars[0].aval.ndim == 2
        ]
        assert all(x.dtype == jnp.float32 for x in added if x.shape == _W.shape)
        assert error(jax.grad(cast)(_W, _X)) < 0.05


def test_narrow_value_that_is_used_twice():
    def twice(w, x):
        y = x @ w
        return jnp.sum((y @ w) * (y @ w.T))

    jaxpr = jax.make_jaxpr(jax.grad(dtypeguard.autocast(twice, _ALL)))(_W, _X)
    added = [e for e in equations(jaxpr) if e.primitive.name in ("add", "add_any")]
    assert added
    assert all(eqn.outvars[0].aval.dtype == jnp.float32 for eqn in added)


@pytest.mark.parametrize("default", ["products", "all"])
def test_under_transformations(default):
    cast = dtypeguard.autocast(loss, Plan(_BFLOAT16, default))
    transforms = {
        "grad": jax.grad,
        "jacfwd": jax.jacfwd,
        "hessian": jax.hessian,
        "vmap": lambda f: lambda w, x: jax.vmap(f, (None, 0))(w, x[:, None]),
        "vmap of grad": lambda f: (
            lambda w, x: jax.vmap(jax.grad(f), (None, 0))(w, x[:, None])
        ),
        "grad of vmap": lambda f: jax.grad(
            lambda w, x: jnp.sum(jax.vmap(f, (None, 0))(w, x[:, None]))
        ),
        "linearize": lambda f: lambda w, x: jax.linearize(f, w, x)[1](w, x),
        "jit of grad": lambda f: jax.jit(jax.grad(f)),
    }
    for name, transform in transforms.items():
        own, bare = (transform(f)(_W, _X) for f in (cast, loss))
        assert own.dtype == bare.dtype, name
        scale = jnp.max(jnp.abs(bare))
        assert jnp.allclose(own / scale, bare / scale, atol=0.05), name


def test_body_of_a_scan_keeps_its_types():
    def step(carry, x):
        w, count = carry
        return (w - 0.1 * jax.grad(loss)(w, x), count + 1), loss(w, x)

    cast = dtypeguard.autocast(step, jnp.bfloat16)
    (w, count), losses = lax.scan(cast, (_W, 0), jnp.stack([_X] * 3))
    assert (w.dtype, count.dtype, losses.dtype) == ("float32", "int32", "float32")


def test_weak_types_and_python_numbers():
    def f(x, scale, flag):
        assert isinstance(scale, float)
        return x @ x * scale if flag else x, jnp.asarray(2.0) * 1, 3, "name", None

    bare, own = f(_W, 2.0, True), dtypeguard.autocast(f, jnp.bfloat16)(_W, 2.0, True)
    assert own[2:] == bare[2:]
    assert own[1].weak_type == bare[1].weak_type
    assert own[0].dtype == bare[0].dtype


def test_numpy_results_stay_as_they_are():
    def f(w, x):
        return x @ w, np.arange(3), np.float64(1 / 3), {"a": np.ones(2), "b": np.bool_(1)}

    bare = f(_W, _X)
    own = dtypeguard.autocast(f, jnp.bfloat16)(_W, _X)
    for a, b in zip(*map(jax.tree.leaves, (own[1:], bare[1:]))):
        assert type(a) is type(b)
        assert a.dtype == b.dtype
        assert (a == b).all()
    jitted = jax.jit(dtypeguard.autocast(f, jnp.bfloat16))(_W, _X)
    assert [x.dtype for x in jax.tree.leaves(jitted)] == [
        x.dtype for x in jax.tree.leaves(jax.jit(f)(_W, _X))
    ]


# What is never undone


def test_own_casts_stay():
    def f(w, x):
        wide = x.astype(jnp.float32) @ w.astype(jnp.float32)
        return wide + jnp.dot(x, x.T, preferred_element_type=jnp.float32)[:, :1]

    cast = dtypeguard.autocast(f, Plan(_BFLOAT16, "all"))
    narrow = _W.astype(jnp.bfloat16), _X.astype(jnp.bfloat16)
    assert dots(cast, *narrow) == dots(f, *narrow)
    assert [str(each) for each in cast.kept] == [
        "tests/autocast/test_autocast.py:test_own_casts_stay.f: "
        "x.astype(jnp.float32) @ w.astype(jnp.float32): kept by its own cast"
    ]


def test_result_that_is_asked_for():
    f = lambda w, x: jnp.dot(x, w, preferred_element_type=jnp.float32)
    cast = dtypeguard.autocast(f, jnp.bfloat16)
    assert dots(cast, _W, _X) == [("bfloat16", "bfloat16", "float32")]


def test_own_precision_stays():
    def f(w, x):
        return jnp.dot(x, w, precision="highest") + x @ w

    cast = dtypeguard.autocast(f, jnp.bfloat16)
    assert dots(cast, _W, _X) == [_WIDE, _NARROW]
    assert "by the precision that it asks for" in str(*cast.kept)


def test_draws_and_integers_stay():
    def f(key, x):
        noise = jax.random.normal(key, x.shape) * (x @ x.T)[0, 0]
        return jax.random.uniform(key, (3,)), jax.random.split(key)[0], noise, x[0].argmax()

    key = jax.random.key(0)
    bare = f(key, _X)
    own = dtypeguard.autocast(f, _ALL)(key, _X)
    assert (own[0] == bare[0]).all()
    assert own[1] == bare[1]
    assert own[3] == bare[3]


def test_callbacks_get_what_they_expect():
    def host(x):
        assert x.dtype == np.float32
        return x + 1

    def f(w, x):
        y = x @ w
        return jax.pure_callback(host, jax.ShapeDtypeStruct(y.shape, jnp.float32), y) @ w

    cast = dtypeguard.autocast(f, Plan(_BFLOAT16, "all"))
    assert jnp.allclose(cast(_W, _X), f(_W, _X), atol=0.1)


# Constants of float32


def test_constants_that_float16_does_not_hold():
    def f(w, x):
        scores = jnp.where(x @ w > 0, x @ w, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores)
        norm = weights / (jnp.sqrt(jnp.sum(weights**2)) + 1e-12)
        return norm @ w

    cast = dtypeguard.autocast(f, Plan(_FLOAT16, "all"))
    own, bare = cast(_W, -abs(_X)), f(_W, -abs(_X))
    assert jnp.isfinite(own).all()
    assert jnp.allclose(own, bare, atol=0.01)
    kept = "\n".join(map(str, cast.kept))
    assert "float32).min" in kept
    assert "1e-12" in kept
    assert "by a constant that float16 does not hold" in kept


# Entries


def mixed(w, x):
    y = x @ w
    return y @ w


def test_functions_with_their_dtypes():
    outer = lambda w, x: mixed(w, x) @ w
    cast = dtypeguard.autocast(outer, {"test_autocast.py:mixed": "float32"})
    assert dots(cast, _W, _X) == [_WIDE, _WIDE, _NARROW]
    with pytest.raises(ValueError, match=r"autocast has .* = 'int8'. Write one of float32"):
        dtypeguard.autocast(outer, {"test_autocast.py:mixed": "int8"})


# Traces and compilations


def test_inner_jit_compiles_once():
    traces = []

    @jax.jit
    def inner(w, x):
        traces.append(1)
        return layer(w, x)

    cast = dtypeguard.autocast(lambda w, x: inner(w, inner(w, x)), jnp.bfloat16)
    from jax import monitoring

    compiled = []
    cast(_W, _X).block_until_ready()
    listener = lambda event, *_, **__: compiled.append(event)
    monitoring.register_event_duration_secs_listener(listener)
    for _ in range(10):
        cast(_W, _X).block_until_ready()
    monitoring.clear_event_listeners()
    assert len(traces) == 1
    assert not [event for event in compiled if "backend_compile" in event]


def test_what_it_closes_over_may_change():
    held = [_W]
    cast = dtypeguard.autocast(lambda x: x @ held[0], jnp.bfloat16)
    assert jnp.allclose(cast(_X), _X @ _W, atol=0.1)
    jax.jit(lambda x: cast(x))(_X)
    held[0] = 2 * _W
    assert jnp.allclose(cast(_X), 2 * _X @ _W, atol=0.1)
    assert jnp.allclose(jax.jit(lambda x: cast(x) * 1)(_X), 2 * _X @ _W, atol=0.1)

    def outer(w):
        return jnp.sum(dtypeguard.autocast(lambda x: x @ w, jnp.bfloat16)(_X))

    assert jax.grad(outer)(_W).dtype == jnp.float32


# Errors


def test_wrong_arguments(tmp_path):
    with pytest.raises(TypeError, match=r"neither a plan nor a dtype. Write one of them"):
        dtypeguard.autocast(layer)
    with pytest.raises(TypeError, match="a plan and a dtype"):
        dtypeguard.autocast(layer, "a.plan", dtype=jnp.bfloat16)
    with pytest.raises(TypeError, match="no narrow floating dtype"):
        dtypeguard.autocast(layer, jnp.int8)
    with pytest.raises(TypeError, match="Give it a function of arrays first"):
        dtypeguard.autocast(3, jnp.bfloat16)
    with pytest.raises(ValueError, match="does not exist"):
        dtypeguard.autocast(layer, str(tmp_path / "no.plan"))
    with pytest.raises(ValueError, match=r"bfloat does not exist.*bfloat16 and float16"):
        dtypeguard.autocast(layer, "bfloat")


def test_older_release(monkeypatch):
    monkeypatch.setattr("dtypeguard._leaves.compat.HAS_NUMBERS", False)
    with pytest.raises(NotImplementedError, match=r"needs JAX 0.8 .*pip install -U jax"):
        dtypeguard.autocast(layer, jnp.bfloat16)


def test_function_without_products():
    cast = dtypeguard.autocast(jnp.sin, jnp.bfloat16)
    with pytest.raises(ValueError, match=r"no product in sin.*default = \"all\""):
        cast(_X)


# Libraries


def test_equinox():
    model = eqx.nn.MLP(8, 8, 16, 2, key=jax.random.key(0))

    def loss(model, x):
        return jnp.mean(jax.vmap(model)(x) ** 2)

    cast = dtypeguard.autocast(loss, jnp.bfloat16)
    bare, own = (eqx.filter_grad(f)(model, _X) for f in (loss, cast))
    assert jax.tree_util.tree_structure(own) == jax.tree_util.tree_structure(bare)
    for a, b in zip(*map(jax.tree_util.tree_leaves, (own, bare))):
        assert a.dtype == b.dtype
        assert jnp.allclose(a, b, atol=0.05)
    assert eqx.filter_jit(cast)(model, _X).dtype == jnp.float32
    step = dtypeguard.autocast(lambda model, x: (model, loss(model, x)), jnp.bfloat16)
    assert isinstance(step(model, _X)[0], eqx.nn.MLP)


def test_linen_and_haiku():
    nn, hk = need("flax.linen"), need("haiku")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(nn.relu(nn.LayerNorm()(nn.Dense(8)(x))))

    linen = Net()
    params = linen.init(jax.random.key(0), _X)
    haiku = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([8, 4])(x)))
    weights = haiku.init(jax.random.key(0), _X)
    for apply, given in ((linen.apply, params), (haiku.apply, weights)):
        cast = dtypeguard.autocast(apply, jnp.bfloat16)
        assert all(dot == _NARROW for dot in dots(cast, given, _X))
        assert jnp.allclose(cast(given, _X), apply(given, _X), atol=0.1)


@pytest.fixture
def nnx():
    return need("flax.nnx")


def test_nnx_changes_in_place(nnx):
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.dense = nnx.Linear(8, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.drop(self.norm(self.dense(x)))

    def loss(model, x):
        return jnp.mean(model(x) ** 2)

    def made():
        return Net(nnx.Rngs(0))

    bare, own = made(), made()
    cast = dtypeguard.autocast(loss, jnp.bfloat16)
    expected, found = loss(bare, _X), cast(own, _X)
    assert jnp.allclose(found, expected, atol=0.05)
    states = [nnx.state(model) for model in (bare, own)]
    for a, b in zip(*map(jax.tree_util.tree_leaves, states)):
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jnp.floating):
            assert jnp.allclose(a, b, atol=0.05)
    assert jnp.any(own.norm.mean[...] != 0)
    gradient = nnx.grad(cast)(own, _X)
    assert jax.tree_util.tree_leaves(gradient)[0].dtype == jnp.float32
    assert jnp.isfinite(nnx.jit(cast)(own, _X))


def test_nnx_training_step(nnx):
    import optax

    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - 1) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    cast = dtypeguard.autocast(step, jnp.bfloat16)
    with jax.numpy_dtype_promotion("standard"):
        losses = [float(cast(model, optimizer, _X)) for _ in range(5)]
        losses += [float(nnx.jit(cast)(model, optimizer, _X)) for _ in range(2)]
    assert losses == sorted(losses, reverse=True)
    assert int(optimizer.step[...]) == 7
    assert dtypeguard.autocast(model, jnp.bfloat16)(_X).dtype == jnp.float32


@pytest.mark.parametrize("default", ["products", "all"])
def test_an_export_for_any_batch_size(default):
    export = pytest.importorskip("jax.export")  # since JAX 0.4.30
    normed = lambda w, x: jnp.sum(jax.nn.softmax(x @ w)[:, 0])
    cast = dtypeguard.autocast(jax.grad(normed, argnums=1), Plan(_BFLOAT16, default))
    shape = export.symbolic_shape("b, 8")
    exported = export.export(jax.jit(cast))(_W, jax.ShapeDtypeStruct(shape, _X.dtype))
    assert jnp.allclose(exported.call(_W, _X), cast(_W, _X), atol=1e-3)
