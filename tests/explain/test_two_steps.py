"""Notes name the line behind the line: in a helper, behind a cast, behind a model."""

import functools
import linecache
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from advice import applied, line as line_of, note_on
from jax import lax

import dtypeguard

pytestmark = pytest.mark.third_party  # standard promotion
BF16, F32 = jnp.bfloat16, jnp.float32
X = jnp.ones((4, 3), BF16)

line = functools.partial(line_of, __file__)


def schedule(count):
    warm = jnp.asarray(count, F32) / 10  # step: inside
    return warm * jnp.ones(3, BF16)


def test_the_line_in_a_helper_comes_with_its_call():
    def body(carry, x):
        count, value = carry
        rate = schedule(count)  # step: called
        return (count + 1, value * rate), None

    note = note_on(lambda: lax.scan(body, (jnp.int32(0), jnp.ones(3, BF16)), X))
    forced = f"forced by {line('step: inside')}, called from {line('step: called')}  "
    assert forced in note


def test_a_cast_to_the_dtype_of_another_value_follows_that():
    def body(carry, x):
        logits = jnp.asarray(x, F32) * jnp.ones(3)  # step: logits
        loss = optax.losses.sigmoid_binary_cross_entropy(logits, jnp.zeros(3, BF16))
        return carry + loss, None

    note = note_on(lambda: lax.scan(body, jnp.zeros(3, BF16), X))
    assert f"  forced by {line('step: logits')}\n" in note


@pytest.mark.parametrize("is_traced", [False, True])
def test_what_is_made_like_an_array_follows_that(is_traced):
    def run(x):
        model = jnp.sin(x.astype(F32))  # step: model

        def body(carry, x):
            zeros = jnp.zeros_like(model)
            return carry + zeros * x, None

        return lax.scan(body, jnp.zeros(3, BF16), X)

    run = jax.jit(run) if is_traced else run
    note = note_on(lambda: run(jnp.ones(3, BF16)))
    assert f"  forced by {line('step: model')}\n" in note


def test_a_function_that_is_combined_with_itself():
    def product(one, other):
        return one * other * jnp.float32(2)  # step: product

    def run(function):
        return lax.associative_scan(function, jnp.ones(5, BF16))

    note = note_on(lambda: run(product))
    assert note.startswith("dtypeguard: fn of associative_scan returns 1 leaf in another")
    assert f"float32[5]  {line('step: product')}  " in note
    assert "lax.associative_scan(dtypeguard.guard_step(function), " in note
    assert run(dtypeguard.guard_step(product)).dtype == BF16


def test_a_dtype_that_came_in_with_an_array():
    @jax.jit
    def sample(key, tokens):
        mean = tokens + 1  # step: tokens
        return jax.random.normal(key, mean.shape, mean.dtype)  # step: sample

    note = note_on(lambda: sample(jax.random.PRNGKey(0), jnp.arange(3)))
    assert re.search(rf"dtype = mean.dtype  int32  {line('step: tokens')}  ", note)
    assert f"At {line('step: sample')} write jnp.float32 in place of mean.dtype." in note


def test_a_moment_that_begins_narrower_than_its_param_is_the_cause():
    params = {"w": jnp.ones(3), "b": jnp.ones(4)}
    opt = optax.adam(1e-3)
    state = opt.init(jax.tree.map(lambda p: p.astype(BF16), params))  # step: state

    def body(carry, x):
        params, state, half = carry
        grads = jax.tree.map(lambda p: p * x, params)
        updates, state = opt.update(grads, state, params)
        return (optax.apply_updates(params, updates), state, half), None

    carry = params, state, jnp.ones((), BF16)
    note = note_on(lambda: lax.scan(body, carry, jnp.ones(2)))
    assert f"-> float32[4]  begins at {line('step: state')}  promoted at " in note
    assert f"At {line('step: state')} begin 2 leaves of carry[1][0].mu as float32" in note
    assert "Or wrap the optimizer: dtypeguard.guard(opt)." in note


def test_a_value_of_another_cell_of_a_notebook():
    cells = {
        "<ipython-input-1-a>": "first, x = jnp.zeros(3, jnp.bfloat16), jnp.ones((2, 3))",
        "<ipython-input-2-b>": "def body(c, x):\n    return c * x, None",
        "<ipython-input-3-c>": "jax.lax.scan(body, first, x)",
    }
    names = {"jax": jax, "jnp": jnp}

    def run():
        for name, text in cells.items():
            linecache.cache[name] = len(text), None, text.splitlines(True), name
            exec(compile(text, name, "exec"), names)

    assert "  begins at <ipython-input-1-a>:1" in note_on(run)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_compiled_function_that_is_given_another_type(is_alone):
    """As in mujoco issue 2565, where a step is called with what it gave back."""
    other = jnp.ones(2, jnp.int32 if is_alone else F32)

    def train(other):
        step = lambda s: {"x": s["x"] + 1, "n": jnp.float32(1) * s["n"]}
        state = {"n": jnp.ones(2, BF16), "x": other}
        run = jax.jit(step).lower(state).compile()
        for _ in range(3):
            state = run(state)  # step: compiled
        return state

    note = note_on(lambda: train(other))
    place = line("step: compiled")
    assert f"  s['n']  bfloat16[2] -> float32[2]  {place}\n" in note
    assert "ompile a function that keeps its types: dtypeguard.guard_step(step)" in note
    guarded = applied(train, ("jax.jit(step)", "jax.jit(dtypeguard.guard_step(step))"))
    assert guarded(other)["n"].dtype == BF16
    written = re.search(r"At .* write (jax.tree.map.*) in place of state,", note)
    assert (written is not None) is is_alone  # else it would cast the other leaf too
    if written:
        mended = applied(train, ("run(state)", f"run({written[1]})"))
        assert mended(other)["n"].dtype == F32
