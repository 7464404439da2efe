"""guard_step over what Flax NNX changes in place: modules, optimizers, metrics."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import tree_util

from dtypeguard import (
    DtypeDriftError,
    DtypeGuardWarning,
    Policy,
    audit,
    guard_step,
    strong,
)
from tests.support.dtypes import BF16, F32
from tests.support.helpers import assert_same, need, types

pytestmark = pytest.mark.third_party


@pytest.fixture(scope="module")
def nnx():
    return need("flax.nnx")


def make(nnx, dtype=BF16):
    """A model with every kind of state, and its optimizer."""

    class Count(nnx.Variable):
        pass

    class Model(nnx.Module):
        def __init__(self, rngs):
            options = {"rngs": rngs, "param_dtype": dtype}
            self.layers = nnx.List([nnx.Linear(3, 3, **options) for _ in range(2)])
            self.norm = nnx.BatchNorm(3, **options)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.calls = Count(jnp.asarray(np.float32(0)))
            self.seen = jnp.zeros(3, dtype)  # an array that is no Variable
            self.means = nnx.List([jnp.zeros(3, dtype)])
            self.tied = self.layers[0]

        def __call__(self, x):
            self.calls.set_value(self.calls.get_value() + 1)
            self.seen = self.seen + x.mean(0).astype(F32)
            self.means[0] = self.seen / 2
            for layer in self.layers:
                x = nnx.relu(layer(x))
            return self.dropout(self.norm(x))

    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def widens(model, optimizer, x):
    """A step that drifts and is cheap to trace."""
    bias, step = model.tied.bias, optimizer.step
    bias.set_value(bias[...] + x.astype(F32).mean())
    step.set_value(step[...] + np.uint32(1))
    return x.sum()


def data(dtype=BF16):
    return jax.random.normal(jax.random.key(1), (8, 3)).astype(dtype)


def typed(tree):
    """The type of each leaf by path."""
    leaves = tree_util.tree_flatten_with_path(tree)[0]
    return {tree_util.keystr(path): types(leaf) for path, leaf in leaves}


def drifts(before, tree):
    """The leaves that have other types than before, by path."""
    after = typed(tree)
    return {path for path in before if before[path] != after[path]}


@pytest.fixture(scope="module")
def trained(nnx):
    """Trains two steps: the losses, what drifted, and how often the step was traced."""

    def run(wrap, dtype):
        model, optimizer = make(nnx, dtype)
        before, traces = typed((model, optimizer)), []

        def step(model, optimizer, x):
            traces.append(1)
            loss, grads = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
            # As of a loss that is scaled in float32.
            grads = tree_util.tree_map(lambda g: g.astype(F32), grads)
            optimizer.update(model, grads)
            return loss

        train = wrap(step)
        losses = [train(model, optimizer, data(dtype)) for _ in range(2)]
        return losses, drifts(before, (model, optimizer)), len(traces)

    return run, {dtype: run(nnx.jit, dtype) for dtype in (BF16, F32)}


@pytest.fixture(params=["jit outside", "jit inside"])
def wrap(request, nnx):
    if request.param == "jit outside":
        return lambda step: nnx.jit(guard_step(step))
    return lambda step: guard_step(nnx.jit(step))


def test_the_callers_objects_keep_their_types_and_train(trained, wrap):
    run, bare = trained
    _, drifted, traces = bare[BF16]
    assert "[0].seen" in drifted
    assert traces == 2
    losses, drifted, traces = run(wrap, BF16)
    assert not drifted
    assert traces == 1
    assert losses[-1] != losses[0]


def test_a_stable_step_gives_the_same_bits(trained, wrap):
    run, bare = trained
    expected, drifted, _ = bare[F32]
    assert not drifted
    losses, drifted, traces = run(wrap, F32)
    assert_same(losses, expected)
    assert (drifted, traces) == (set(), 1)


@pytest.mark.parametrize(
    "returned",
    [
        lambda model, loss: loss,
        lambda model, loss: (model, loss),
        lambda model, loss: {"loss": loss, "model": model},
        lambda model, loss: None,
    ],
)
def test_what_is_returned_need_not_be_the_carry_and_may_be(nnx, returned):
    objects = make(nnx)
    before = typed(objects)
    guard_step(lambda m, o, x: returned(m, widens(m, o, x)))(*objects, data())
    assert not drifts(before, objects)


@pytest.mark.parametrize("loop", ["scan", "while_loop", "cond"])
def test_control_flow_of_nnx(nnx, loop):
    def run(wrap):
        objects = make(nnx)
        before = typed(objects)
        if loop == "scan":
            step = wrap(lambda carry, x: (carry, widens(*carry, x)))
            scanned = nnx.scan(step, in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
            scanned(objects, jnp.stack([data()] * 3))
        elif loop == "while_loop":

            def step(carry):
                widens(*carry, data())
                return carry

            nnx.while_loop(lambda carry: carry[1].step[...] < 3, wrap(step), objects)
        else:
            other = lambda model, optimizer, x: jnp.zeros((), BF16)
            branch = wrap(lambda *given: widens(*given).astype(BF16))
            nnx.cond(jnp.asarray(True), branch, other, *objects, data())
        assert objects[1].step[...] > 0
        return drifts(before, objects)

    with pytest.raises((TypeError, ValueError)):
        run(lambda step: step)
    assert not run(guard_step)


def test_shared_variables_stay_shared(nnx):
    model, optimizer = make(nnx)
    variables = [model.tied.kernel, optimizer.step]
    guard_step(widens)(model, optimizer, data())
    assert model.tied.kernel is variables[0] is model.layers[0].kernel
    assert optimizer.step is variables[1]


def test_a_method_that_changes_its_object(nnx):
    class Total(nnx.Module):
        def __init__(self):
            self.sum = nnx.Variable(jnp.zeros((), BF16))

        def add(self, x):
            self.sum.set_value(self.sum[...] + x)

    bound, unbound = Total(), Total()
    assert [drift.path for drift in audit(bound.add, jnp.ones(())).drifts] == ["self.sum"]
    guard_step(bound.add)(jnp.ones(()))
    guard_step(Total.add)(unbound, jnp.ones(()))
    for total in (bound, unbound):
        assert (total.sum[...], total.sum[...].dtype) == (1, BF16)


def test_objects_under_one_name_all_keep_their_types(nnx):
    def step(model, /, **others):
        for each in (model, *others.values()):
            each.set_value(each[...] + np.float32(1))

    params = [nnx.Param(jnp.ones(3, BF16)) for _ in range(2)]
    guard_step(step)(params[0], model=params[1])
    assert [param[...].dtype for param in params] == [BF16, BF16]


def test_a_message_has_the_path_in_the_module(nnx):
    def step(model, optimizer):
        bias = model.layers[1].bias
        bias.set_value(bias[...].astype(F32))
        optimizer.step.set_value(optimizer.step[...] + 0.5)

    with pytest.raises(
        DtypeDriftError,
        match=r"^step returned 1 leaf.*\n  optimizer\.step  uint32\[\] -> float32\[\]",
    ):
        guard_step(step)(*make(nnx))
    warned = r"step changed the dtype of 1 leaf:\n  model\.layers\[1\]\.bias  bfloat16\[3\]"
    model, optimizer = make(nnx)
    loud = guard_step(lambda model: step(model, optimizer), policy=Policy(on_drift="warn"))
    with pytest.warns(DtypeGuardWarning, match=warned):
        loud(model)


def test_an_exception_leaves_the_types_as_they_were(nnx):
    model, _ = objects = make(nnx)
    before = typed(objects)

    def step(model, optimizer, x):
        widens(model, optimizer, x)
        model.calls.set_value(model.calls[...] + 1)
        optimizer.step.set_value(optimizer.step[...] + 0.5)
        raise RuntimeError("an early stop")

    with pytest.raises(RuntimeError, match="an early stop"):
        guard_step(step)(*objects, data())
    assert not drifts(before, objects)
    assert model.calls[...] == 1  # what it had done is done, as bare


def test_strong_has_a_module_hold_arrays_of_its_own(nnx):
    model, _ = make(nnx)
    model.calls.set_value(0)
    kernel, weight = model.tied.kernel, model.tied.kernel[...]
    again, state = strong((model, {"n": 0}))
    assert again is model
    assert model.tied.kernel is kernel
    assert state["n"].dtype == jnp.int32
    assert (model.calls[...].dtype, model.calls[...].weak_type) == (jnp.int32, False)
    assert kernel[...].unsafe_buffer_pointer() != weight.unsafe_buffer_pointer()


def test_what_is_changed_in_place_and_what_is_returned(nnx):
    objects = make(nnx)

    @nnx.jit
    @guard_step(carry=("model", "optimizer", "average"))
    def step(model, optimizer, average, x):
        return average + x.astype(F32).mean(0), widens(model, optimizer, x.astype(F32))

    before = typed(objects)
    average, loss = step(*objects, jnp.zeros(3, BF16), data())
    assert (average.dtype, loss.dtype) == (BF16, F32)
    assert not drifts(before, objects)
