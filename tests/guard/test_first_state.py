"""The first state: strongly typed, in buffers of its own, copied leaf by leaf."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_same
from jax import tree_util
from one_leaf import dict_leaf, transformation

from dtypeguard import guard
from dtypeguard._leaves.compat import CAN_COPY

F32 = jnp.float32
PARAMS = {"w": jnp.ones(3, F32)}


@pytest.mark.parametrize("made", [0, 1.5, True, 1j, np.float16(1), np.int8(1), np.ones(2)])
def test_init_makes_strongly_typed_arrays(made):
    state = guard(dict_leaf(lambda _: made, lambda leaf, _: leaf)).init({"w": jnp.ones(3)})
    leaf = state["leaf"]
    assert isinstance(leaf, jax.Array)
    assert not leaf.weak_type
    assert leaf.dtype == jnp.result_type(made)
    np.testing.assert_array_equal(leaf, made)


def keep_params():
    """As Prodigy does: the first params, and one array in two places."""

    def init(params):
        zeros = tree_util.tree_map(jnp.zeros_like, params)
        return {"params0": params, "mu": zeros, "nu": zeros}

    def update(updates, state, params=None):
        add = functools.partial(tree_util.tree_map, jnp.add)
        return updates, state | {"mu": add(state["mu"], updates)}

    return transformation(update, init)


@pytest.mark.parametrize("jitted", [False, True])
def test_params_and_first_state_can_be_donated(jitted):
    def train(opt):
        params = {"w": jnp.arange(3.0), "v": jnp.ones((2, 2))}
        init = jax.jit(opt.init) if jitted else opt.init
        state = init(params)

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def step(params, state):
            updates, state = opt.update(params, state, params)
            return optax.apply_updates(params, updates), state

        for _ in range(2):
            params, state = step(params, state)
        return params

    if not jitted:  # jit copies what it gives back as it was
        with pytest.raises(Exception, match="donate"):
            train(keep_params())
    np.testing.assert_array_equal(train(guard(keep_params()))["w"], 4 * jnp.arange(3.0))


def make_rates():
    return jnp.linspace(0.1, 0.9, 9, dtype=F32)


@pytest.mark.parametrize("alias", [lambda x: x, jax.device_put, lambda x: x.reshape(3, 3)])
def test_an_array_that_the_optimizer_holds_outlasts_a_donated_state(alias):
    held = functools.cache(make_rates)
    opt = guard(transformation(init=lambda params: {"a": alias(held()), "b": held()}))
    step = jax.jit(lambda state: opt.update(PARAMS, state)[1], donate_argnums=0)
    for _ in range(2):
        assert_same(step(opt.init(PARAMS)), {"a": alias(make_rates()), "b": make_rates()})
    assert_same(held(), make_rates())


@pytest.mark.skipif(not CAN_COPY, reason="needs JAX >= 0.5")
def test_a_copy_compiles_nothing(caplog):
    """A shape of its own for each leaf would compile a copy for each."""
    state = [jax.device_put(np.ones((17, n), np.float32)) for n in range(1, 9)]
    keep = optax.GradientTransformation(lambda params: state, lambda u, s, p: (u, s))
    with jax.log_compiles(), caplog.at_level("WARNING"):
        copies = guard(keep).init({})
    assert not [each for each in caplog.messages if "ompil" in each]
    pointers = {each.unsafe_buffer_pointer() for each in (*state, *copies)}
    assert len(pointers) == 16
