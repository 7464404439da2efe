"""Advice that holds to the letter: first values, trees of several dtypes, losses."""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from advice import applied, line as line_of, note_on
from helpers import set_x64
from jax import lax

BF16, F32 = jnp.bfloat16, jnp.float32
PARAMS = {"w": jnp.ones((4, 4)), "u": jnp.ones((4, 4))}

line = functools.partial(line_of, __file__)
pytestmark = pytest.mark.third_party


def recurrent():
    def cell(hidden, x):
        hidden = jnp.tanh(x @ PARAMS["w"] + hidden @ PARAMS["u"])  # the cell
        return hidden, hidden

    hidden = jnp.zeros(4, BF16)  # the hidden
    return lax.scan(cell, hidden, jnp.ones((3, 4)))[0]


def test_a_first_value_that_no_other_array_is_like_is_the_cause():
    note = note_on(recurrent)
    begun = line("the hidden")
    types = re.escape("bfloat16[4] -> float32[4]")
    assert re.search(
        rf"  hidden  {types}  begins at {begun}  promoted at {line('the cell')}", note
    )
    begin = f"At {begun} begin hidden as float32: write jnp.zeros(4, jnp.float32) "
    begin += "in place of jnp.zeros(4, BF16)."
    assert note.splitlines()[-4] == begin
    assert note.splitlines()[-3].startswith("Or write lax.scan(dtypeguard.guard_step(cell)")
    mended = applied(
        recurrent, ("jnp.zeros(4, BF16)", "jnp.asarray(jnp.zeros(4, BF16), jnp.float32)")
    )
    assert mended().dtype == F32


def of_params_that_an_average_begins_with():
    params, rate = {"w": jnp.ones(4, BF16)}, jnp.float32(0.99)  # the params

    def step(carry, x):
        params, average = carry
        params = jax.tree.map(lambda p: p - x * p, params)
        mix = lambda a, p: rate * a + (1 - rate) * p
        return (params, jax.tree.map(mix, average, params)), None

    return lax.scan(step, (params, params), jnp.ones(3, BF16))[0]


def test_the_line_of_params_is_not_that_of_an_average_that_begins_with_them():
    note = note_on(of_params_that_an_average_begins_with)
    assert f"At {line('the params')}" not in note
    assert f"begins at {line('the params')}" not in note
    assert "\nBegin carry[1]['w'] as float32: jnp.asarray(x, jnp.float32)." in note
    new = "(params, jax.tree.map(jnp.float32, params))"
    mended = applied(of_params_that_an_average_begins_with, ("(params, params)", new))
    assert [x["w"].dtype for x in mended()] == [BF16, F32]


def of_params_that_are_given_twice():
    params, rate = {"w": jnp.ones(4, BF16)}, jnp.float32(0.99)  # the given params

    @jax.jit
    def train(params, average):
        def step(carry, x):
            params, average = carry
            mix = lambda a, p: rate * a + (1 - rate) * p
            return (params, jax.tree.map(mix, average, params)), None

        return lax.scan(step, (params, average), jnp.ones(3, BF16))[0]

    return train(params, params)


def test_the_line_of_params_is_not_that_of_another_argument():
    note = note_on(of_params_that_are_given_twice)
    assert f"At {line('the given params')}" not in note
    assert "\nBegin carry[1]['w'] as float32: jnp.asarray(x, jnp.float32)." in note


def of_a_long_call(dtype):
    def body(carry, x):
        return {name: leaf + x for name, leaf in carry.items()}, None

    make = dict
    first = make(  # the call
        wide=jnp.ones(3),
        narrow=jnp.ones(3, BF16),  # the argument
        other=jnp.ones(3, dtype),
    )
    return lax.scan(body, first, jnp.ones((4, 3)))


def test_an_argument_of_a_call_over_several_lines_is_named():
    alone = note_on(lambda: of_a_long_call(F32))
    assert f"  begins at {line('the argument')}  promoted at " in alone
    several = note_on(lambda: of_a_long_call(BF16))  # nothing tells which of them it is
    assert f"  begins at {line('the call')}" in several


def simulated():
    def body(carry, _):
        position, velocity, energy = carry
        velocity = velocity - position * 0.01
        energy = energy + jnp.sum(velocity**2)
        return (position + velocity * 0.01, velocity, energy), None

    energy = jnp.zeros((), F32)  # the energy
    carry = jnp.ones(3), jnp.zeros(3), energy
    return lax.scan(body, carry, None, 5)[0][2]


def test_a_program_in_float64_is_not_told_to_round():
    with set_x64(True):
        note = note_on(simulated)
        begin = f"At {line('the energy')} begin carry[2] as float64"
        changed = "jnp.zeros((), jnp.float64)"
        assert f"{begin}: write {changed} in place of jnp.zeros((), F32)." in note
        assert applied(simulated, ("jnp.zeros((), F32)", changed))().dtype == "float64"


def averaged():
    def body(mean, x):
        return 0.99 * mean + 0.01 * jnp.mean(x), None

    mean = jnp.zeros((), BF16)  # the mean
    return lax.scan(body, mean, jnp.ones((2, 3)))[0]


def test_an_average_that_would_not_move_begins_in_float32():
    note = note_on(averaged)
    begun = line("the mean")
    changed = "jnp.zeros((), jnp.float32)"
    begin = f"At {begun} begin mean as float32: write {changed} in place of"
    assert f"{begin} jnp.zeros((), BF16)." in note.splitlines()
    assert f"  begins at {begun}  promoted at " in note
    assert applied(averaged, ("jnp.zeros((), BF16)", changed))().dtype == F32
    quick = note_on(lambda: lax.scan(quickly, jnp.zeros((), BF16), jnp.ones((2, 3))))
    assert "  begins at " in quick
    assert "begin mean as" not in quick


def quickly(mean, x):
    return 0.5 * mean + 0.5 * jnp.mean(x), None


def narrow_beside_wide():
    scale = jnp.ones(3)

    def body(carry, _):
        return jax.tree.map(lambda x: x * scale, carry), None

    return lax.scan(body, {"b": jnp.ones(3, BF16), "h": jnp.ones(3, jnp.float16)}, None, 2)[
        0
    ]


def test_leaves_of_several_dtypes_are_cast_each_to_its_own():
    note = note_on(narrow_beside_wide)
    assert "x.astype(p.dtype), where p is the leaf that came in." in note
    assert "A cast to bfloat16 and float16 rounds" in note
    changed = "jax.tree.map(lambda x, p: (x * scale).astype(p.dtype), carry, carry)"
    mended = applied(
        narrow_beside_wide, ("jax.tree.map(lambda x: x * scale, carry)", changed)
    )
    assert {str(x.dtype) for x in jax.tree.leaves(mended())} == {"bfloat16", "float16"}


def complex_loss():
    def loss(w):
        return jnp.vdot(w, w)

    return jax.grad(loss)(jnp.ones(3, jnp.complex128))


def test_a_complex_loss_keeps_its_bits():
    with set_x64(True):
        note = note_on(complex_loss)
        new = "jnp.real(jnp.vdot(w, w)).astype(jnp.float64)"
        assert f"write {new} in place of jnp.vdot(w, w)." in note
        applied(complex_loss, ("return jnp.vdot(w, w)", f"return {new}"))()


def loss_of(p, x):
    return jnp.sum((x * p["w"] + p["b"]) ** 2)


def cast_before_the_gradient():
    def body(params, x):
        wide = jax.tree.map(lambda a: a.astype(F32), params)  # the cast
        grads = jax.grad(loss_of)(wide, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), None

    params = {"w": jnp.ones(3, BF16), "b": jnp.ones(3, BF16)}
    return lax.scan(body, params, jnp.ones((2, 3), BF16))


def test_the_seed_of_a_gradient_is_not_the_cause():
    note = note_on(cast_before_the_gradient)
    assert note.count(f"  forced by {line('the cast')}  ") == 2


def gradient_of_a_wide_input():
    def body(params, x):
        wide = jax.tree.map(lambda a: a.astype(F32), params)  # the wide params
        grads = jax.grad(loss_of)(wide, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), None

    params = {"w": jnp.ones(3, BF16), "b": jnp.ones(3, BF16)}
    params, _ = lax.scan(body, params, jnp.ones((2, 3)))


def test_a_gradient_has_the_dtype_of_the_params_whatever_its_inputs_have():
    note = note_on(gradient_of_a_wide_input)
    assert note.count(f"  forced by {line('the wide params')}  ") == 2
    changed = "(p - 0.1 * g).astype(p.dtype)"
    assert f"write {changed} in place of p - 0.1 * g" in note
    applied(gradient_of_a_wide_input, ("p - 0.1 * g", changed))()


def test_an_int_that_is_written_out_gets_a_point():
    note = note_on(lambda: jax.grad(lambda x: x**2)(3))
    assert " write 3.0 in place of 3" in note
    assert "rounded" not in note


def weak_before_strong():
    def body(n, carry):
        factor = 1 - 0.9 ** (n + 1)
        factor = jnp.sqrt(factor) * jnp.ones(3)  # the ones
        return carry * factor

    return lax.fori_loop(0, 3, body, jnp.ones(3, BF16))


@pytest.mark.skipif(
    "weak_type" not in inspect.signature(jax.ShapeDtypeStruct).parameters,
    reason="an abstract value cannot be weakly typed in this release",
)
def test_what_comes_of_the_index_of_a_loop_is_weak():
    assert f"  forced by {line('the ones')}" in note_on(weak_before_strong)


def skipped():
    opt = optax.adam(1e-3)
    params = {"w": jnp.ones(3, BF16)}
    state = opt.init(params)

    def apply():
        updates, new = opt.update({"w": jnp.ones(3)}, state, params)
        return optax.apply_updates(params, updates), new

    return lax.cond(True, apply, lambda: (params, state))


def test_an_optimizer_whose_state_is_closed_over_is_to_be_guarded():
    assert (
        "Wrap the optimizer: dtypeguard.guard(opt) (not tried)."
        in note_on(skipped).splitlines()
    )
    guarded = (
        "opt = optax.adam(1e-3)",
        "import dtypeguard; opt = dtypeguard.guard(optax.adam(1e-3))",
    )
    assert applied(skipped, guarded)()[0]["w"].dtype == BF16


def accumulated():
    params = {"w": jnp.ones(3, BF16), "b": jnp.ones(2, BF16)}
    sums = jax.tree.map(jnp.zeros_like, params)  # sums

    def body(sums, x):
        weight = jnp.mean(x)
        grads = jax.grad(lambda p: (p["w"].sum() * p["b"].sum()).astype(F32))(params)
        return jax.tree.map(lambda s, g: s + g * weight, sums, grads), None

    return lax.scan(body, sums, jnp.ones((4, 3)))[0]["w"]


def test_sums_of_gradients_begin_in_float32():
    note = note_on(accumulated)
    old = "jax.tree.map(jnp.zeros_like, params)"
    changed = f"jax.tree.map(lambda x: x.astype(jnp.float32), {old})"
    begin = f"\nAt {line('sums')} begin 2 leaves of sums as float32: write {changed} in"
    assert begin in note
    assert note.index("begin 2 leaves") < note.index("guard_step")
    assert applied(accumulated, (old, changed))().dtype == F32


def test_a_sum_of_what_is_computed_from_it_is_guarded():
    def body(x, w):
        return x + jnp.tanh(x) * w, None

    note = note_on(lambda: lax.scan(body, jnp.zeros(3, BF16), jnp.ones((4, 3))))
    assert "\nWrite lax.scan(dtypeguard.guard_step(body)" in note


# The first row is what is to be changed ---------------------------------------------------


def test_the_argument_that_is_to_be_changed_comes_first():
    x = jnp.ones((3, 3), F32)
    narrow = jnp.ones((3, 3)).astype(BF16)  # changed: the cast

    note = note_on(lambda: lax.add(x, narrow))
    _, first, second, *_ = note.splitlines()
    assert "write narrow.astype(jnp.float32)" in note
    assert first.startswith("  y = narrow")
    assert first.endswith(line("changed: the cast"))
    assert second.startswith("  x ")


def counted():
    def body(carry, x):
        total, loss = carry
        return (total + loss, loss * x), None  # the sum

    first = jnp.zeros((), int), jnp.ones(())  # the first
    return lax.scan(body, first, jnp.ones(3))


def test_an_int_that_becomes_a_float_is_the_cause():
    note = note_on(counted)
    row = note.splitlines()[1]
    assert row.startswith(
        f"  carry[0]  int32[] -> float32[]  begins at {line('the first')}"
    )


# A copy begins in another type, and not what it copies -----------------------------------


def test_an_average_that_begins_as_a_copy_of_the_params():
    params = {"w": jnp.ones(3, BF16)}  # copied: the params
    first = jax.tree.map(jnp.copy, params)  # copied: the average

    def train(carry, x):
        params, ema = carry
        ema = jax.tree.map(lambda e, p: jnp.float32(0.99) * e + 0.01 * p, ema, params)
        return (params, ema), None

    note = note_on(lambda: lax.scan(train, (params, first), jnp.ones(2)))
    place = line("copied: the average")
    assert f"begins at {place}" in note
    wide = "jax.tree.map(lambda x: x.astype(jnp.float32), jax.tree.map(jnp.copy, params))"
    assert f"\nAt {place} begin carry[1]['w'] as float32: write {wide} in place of" in note


def test_an_argument_with_the_name_of_a_part_of_another_expression_comes_last():
    x = jnp.ones((1, 3, 3), F32)
    half = lambda x: x.astype(BF16)  # changed: in a lambda
    narrow = half(jnp.ones((1, 3, 1)))

    _, first, *_ = note_on(lambda: lax.conv(x, narrow, (1,), "SAME")).splitlines()
    assert first.endswith(line("changed: in a lambda"))


# An int that is given where a float is to be ----------------------------------------------


def energy(x):
    return (x - 2.5) ** 2


def descended(x, steps=3):
    for _ in range(steps):
        x = x - 0.1 * jax.grad(energy)(x)
    return x


def from_an_int():
    return descended(0)  # given: an int


def test_an_int_that_a_call_gives_is_a_float_there():
    note = note_on(from_an_int)
    assert f"  x  int  {line('given: an int')}\n" in note
    assert f"\nAt {line('given: an int')} write 0.0 in place of 0." in note
    assert applied(from_an_int, ("descended(0)", "descended(0.0)"))().dtype == F32


def root_of(f, start):
    def body(state):
        x, n = state
        return x - f(x) / jax.grad(f)(x), n + 1

    return lax.while_loop(lambda s: s[1] < 5, body, (start, 0))


def test_an_int_that_a_loop_begins_with_has_the_line_of_the_call():
    note = note_on(lambda: root_of(lambda x: x**2 - 2, 1))  # given: to a loop
    assert f"  x  int32[]  {line('given: to a loop')}\n" in note
