"""What autocast promises: types, signature, gradients, what stays as written."""

import functools
import gc
import inspect
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, monitoring

from dtypeguard import Plan, autocast
from tests.support.dots import SIGNED as X, W, dots, equations
from tests.support.dtypes import BF16, F32
from tests.support.helpers import assert_close, need

_BFLOAT16 = jnp.dtype("bfloat16")
_ALL = Plan(_BFLOAT16, "all")


def layer(w, x):
    return jnp.tanh(x @ w)


def loss(w, x):
    return jnp.mean(layer(w, layer(w, x)) ** 2)


_NARROW = ("bfloat16",) * 3
_WIDE = ("float32",) * 3


def test_signature_and_attributes():
    class Model:
        @autocast(dtype=BF16)
        def __call__(self, w, x, *, scale: float = 1.0):
            """Documented."""
            return x @ w * scale

    call = Model.__call__
    assert str(inspect.signature(call)) == "(self, w, x, *, scale: float = 1.0)"
    assert call.__doc__ == "Documented."
    assert call.plan == Plan(BF16)
    assert dots(functools.partial(Model(), scale=2.0), W, X) == [_NARROW]


def test_above_a_static_or_class_method():
    class Model:
        @autocast(dtype=BF16)
        @staticmethod
        def layer(w, x):
            return x @ w

        @autocast(dtype=BF16)
        @classmethod
        def layer_of_class(cls, w, x):
            return cls.layer(w, x)

    for model in (Model, Model()):
        for layer in (model.layer, model.layer_of_class):
            assert dots(layer, W, X) == [_NARROW]


def test_plan_by_path_and_name(tmp_path):
    Plan(BF16).save(tmp_path / "a.plan")
    for plan in (tmp_path / "a.plan", str(tmp_path / "a.plan"), "bfloat16", _BFLOAT16):
        assert dots(autocast(layer, plan), W, X) == [_NARROW]


def test_weights_have_gradients_added_up_in_float32():
    of_weight = ("bfloat16", "bfloat16", "float32")
    gradient = jax.grad(autocast(loss, _ALL), (0, 1))
    # Forward twice; then for weights twice, for the layer before, for the argument.
    assert sorted(dots(gradient, W, X)) == [*[_NARROW] * 3, *[of_weight] * 3]
    of_gradient = autocast(jax.grad(loss, (0, 1)), _ALL)
    assert sorted(dots(of_gradient, W, X)) == [*[_NARROW] * 2, *[of_weight] * 4]


def test_cotangents_are_added_up_in_float32():
    """Of a narrow value that turns share, and of a narrow value that is used twice."""

    def shared(w, x):
        w = jnp.sin(w)
        return jnp.sum(lax.scan(lambda x, _: (x + 1e-2 * x @ w, None), x, None, 64)[0])

    def twice(w, x):
        y = x @ w
        return jnp.sum((y @ w) * (y @ w.T))

    for f in (shared, twice):
        gradient = jax.grad(autocast(f, _ALL))
        eqns = equations(jax.make_jaxpr(gradient)(W, X))
        made = [e.outvars[0].aval for e in eqns if e.primitive.name in ("add", "add_any")]
        added = [x.dtype for x in made if x.shape == W.shape or f is twice]
        assert {*added} == {jnp.dtype("float32")}
        exact = jax.jit(jax.grad(f))(W, X)
        assert jnp.linalg.norm(gradient(W, X) - exact) < 0.05 * jnp.linalg.norm(exact)


_TRANSFORMS = {
    "jacfwd": jax.jacfwd,
    "hessian": jax.hessian,
    "vmap of grad": lambda f: jax.vmap(jax.grad(f), (None, 0)),
    "grad of vmap": lambda f: jax.grad(lambda *x: jnp.sum(jax.vmap(f, (None, 0))(*x))),
    "linearize": lambda f: lambda *x: jax.linearize(f, *x)[1](*x),
}


@pytest.mark.parametrize("default", ["products", "all"])
@pytest.mark.parametrize("transform", _TRANSFORMS.values(), ids=_TRANSFORMS)
def test_under_transformations(default, transform):
    own = transform(autocast(loss, Plan(_BFLOAT16, default)))(W, X[:, None])
    bare = jax.jit(transform(loss))(W, X[:, None])
    assert own.dtype == bare.dtype
    assert jnp.allclose(own, bare, atol=0.05 * jnp.max(jnp.abs(bare)))


def test_body_of_a_scan_keeps_its_types():
    def step(carry, x):
        w, count = carry
        return (w - 0.1 * jax.grad(loss)(w, x), count + 1), loss(w, x)

    (w, count), losses = lax.scan(autocast(step, BF16), (W, 0), jnp.stack([X] * 3))
    assert (w.dtype, count.dtype, losses.dtype) == ("float32", "int32", "float32")


def test_results_that_are_no_arrays_of_jax_stay_as_they_are():
    def f(x, scale, flag):
        assert isinstance(scale, float)
        y = x @ x * scale if flag else x
        numbers = np.arange(3), np.float64(1 / 3), {"a": np.ones(2), "b": np.bool_(1)}
        return y, jnp.asarray(2.0) * 1, numbers, 3, "name", None

    bare, own = f(W, 2.0, True), autocast(f, BF16)(W, 2.0, True)
    assert own[3:] == bare[3:]
    assert [x.weak_type for x in own[:2]] == [x.weak_type for x in bare[:2]]
    for a, b in zip(*map(jax.tree.leaves, (own[2], bare[2]))):
        assert (type(a), a.dtype) == (type(b), b.dtype)
        assert (a == b).all()


# What is never undone


def test_own_casts_stay():
    def f(w, x):
        wide = x.astype(F32) @ w.astype(F32)
        return wide + jnp.dot(x, x.T, preferred_element_type=F32)[:, :1]

    cast = autocast(f, _ALL)
    narrow = W.astype(BF16), X.astype(BF16)
    assert dots(cast, *narrow) == dots(f, *narrow)
    assert [str(each) for each in cast.kept] == [
        "tests/autocast/test_autocast.py:test_own_casts_stay.f: "
        "x.astype(F32) @ w.astype(F32): kept by its own cast"
    ]


def test_result_and_precision_that_are_asked_for_stay():
    def f(w, x):
        wide = jnp.dot(x, w, preferred_element_type=F32)
        return wide + jnp.dot(x, w, precision="highest")

    cast = autocast(f, BF16)
    assert dots(cast, W, X) == [("bfloat16", "bfloat16", "float32"), _WIDE]
    assert "by the precision that it asks for" in str(*cast.kept)


def test_draws_and_integers_stay():
    def f(key, x):
        draws = jax.random.uniform(key, (3,)), jax.random.split(key)[0]
        return *draws, (x @ x.T)[0].argmax()

    own, bare = (each(jax.random.key(0), X) for each in (autocast(f, _ALL), f))
    assert all(jnp.all(x == y) for x, y in zip(own, bare))


def test_callbacks_get_what_they_expect():
    def host(x):
        assert x.dtype == np.float32
        return x + 1

    def f(w, x):
        y = x @ w
        return jax.pure_callback(host, jax.ShapeDtypeStruct(y.shape, F32), y) @ w

    assert jnp.allclose(autocast(f, _ALL)(W, X), f(W, X), atol=0.1)


# Entries


def test_functions_with_their_dtypes():
    outer = lambda w, x: layer(w, x) @ w
    cast = autocast(outer, {"test_autocast.py:layer": "float32"})
    assert dots(cast, W, X) == [_WIDE, _NARROW]
    with pytest.raises(ValueError, match=r"plan has .* = 'int8'. Write one of float32"):
        autocast(outer, {"test_autocast.py:layer": "int8"})


# Traces and compilations


def test_inner_jit_compiles_once():
    traces, compiled = [], []

    @jax.jit
    def inner(w, x):
        traces.append(1)
        return layer(w, x)

    cast = autocast(lambda w, x: inner(w, inner(w, x)), BF16)
    cast(W, X)
    listener = lambda event, *_, **__: compiled.append(event)
    monitoring.register_event_duration_secs_listener(listener)
    for _ in range(10):
        cast(W, X)
    monitoring.clear_event_listeners()
    assert len(traces) == 1
    assert not [event for event in compiled if "backend_compile" in event]


@pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.jit(jax.grad(f))])
def test_no_program_is_kept(transform):
    gc.freeze()  # what is there already is not looked at again

    def called():
        held = 2 * W
        f = lambda w, x: jnp.sum(jnp.tanh(x @ w) @ held)
        transform(autocast(f, BF16))(W, X)
        return weakref.ref(f), weakref.ref(held)

    kept = called()
    gc.collect()
    assert [each() for each in kept] == [None, None]


def test_what_it_closes_over_may_change():
    held = [W]
    cast = autocast(lambda x: x @ held[0], BF16)
    assert jnp.allclose(cast(X), X @ W, atol=0.1)
    held[0] = 2 * W
    assert jnp.allclose(cast(X), 2 * X @ W, atol=0.1)

    def outer(w):
        return jnp.sum(autocast(lambda x: x @ w, BF16)(X))

    assert jax.grad(outer)(W).dtype == F32


# Errors


def test_wrong_arguments(tmp_path):
    with pytest.raises(TypeError, match=r"neither a plan nor a dtype. Write one of them"):
        autocast(layer)
    with pytest.raises(TypeError, match="a plan and a dtype"):
        autocast(layer, "a.plan", dtype=BF16)
    with pytest.raises(TypeError, match="no narrow floating dtype"):
        autocast(layer, jnp.int8)
    with pytest.raises(TypeError, match="Give it a function of arrays first"):
        autocast(3, BF16)
    with pytest.raises(ValueError, match="does not exist"):
        autocast(layer, str(tmp_path / "no.plan"))
    with pytest.raises(ValueError, match=r"bfloat does not exist.*bfloat16 and float16"):
        autocast(layer, "bfloat")


def test_older_release(monkeypatch):
    monkeypatch.setattr("dtypeguard._leaves.compat.HAS_NUMBERS", False)
    with pytest.raises(NotImplementedError, match=r"needs JAX 0.8 .*pip install -U jax"):
        autocast(layer, BF16)


def test_function_without_products():
    cast = autocast(jnp.sin, BF16)
    with pytest.raises(ValueError, match=r"no product in sin.*default = \"all\""):
        cast(X)


# Libraries


def test_equinox():
    model = eqx.nn.MLP(8, 8, 16, 2, key=jax.random.key(0))

    def loss(model, x):
        return jnp.mean(jax.vmap(model)(x) ** 2)

    cast = autocast(loss, BF16)
    bare, own = (eqx.filter_jit(eqx.filter_grad(f))(model, X) for f in (loss, cast))
    assert_close(own, bare, atol=0.05)
    step = autocast(lambda model, x: (model, loss(model, x)), BF16)
    assert isinstance(step(model, X)[0], eqx.nn.MLP)


def test_nnx_changes_in_place():
    nnx, optax = need("flax.nnx"), need("optax")

    class Net(nnx.Module):
        def __init__(self):
            self.dense = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
            self.norm = nnx.BatchNorm(8, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.norm(self.dense(x))

    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - 1) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    models, cast = (Net(), Net()), autocast(step, BF16)
    own, bare = (nnx.Optimizer(m, optax.sgd(1e-2), wrt=nnx.Param) for m in models)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(2):
            cast(models[0], own, X)
            step(models[1], bare, X)
        nnx.jit(cast)(models[0], own, X)
        step(models[1], bare, X)
    assert int(own.step[...]) == 3
    assert_close(*map(nnx.state, models), atol=0.05)
    assert jnp.any(models[0].norm.mean[...] != 0)
    assert autocast(models[0], BF16)(X).dtype == F32


@pytest.mark.parametrize("default", ["products", "all"])
def test_an_export_for_any_batch_size(default):
    export = pytest.importorskip("jax.export")  # since JAX 0.4.30
    normed = lambda w, x: jnp.sum(jax.nn.softmax(x @ w)[:, 0])
    cast = autocast(jax.grad(normed, argnums=1), Plan(_BFLOAT16, default))
    exported = export.export(jax.jit(cast))(
        W, jax.ShapeDtypeStruct(export.symbolic_shape("b, 8"), X.dtype)
    )
    assert jnp.allclose(exported.call(W, X), cast(W, X), atol=1e-3)
