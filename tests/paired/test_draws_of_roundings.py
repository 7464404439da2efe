"""Draws of roundings: how far they take a result, and what they cost."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dtypeguard._paired.shaken import draw, shaken

from dtypeguard._leaves.compat import set_x64
from dtypeguard._paired.plain import Plain
from dtypeguard._paired.subject import Subject, formats_of
from dtypeguard._paired.values import Formats

TURNS = 900


@pytest.fixture(autouse=True)
def double():
    """Wide types of float32 programs are float64."""
    with set_x64(True):
        yield


def plain_of(f, *args, formats=None, is_wide=False):
    subject = Subject(f, args, None, None)
    traced = subject.traced()
    formats = formats or formats_of([*traced.avals], None, None)
    plain = Plain(traced.program, formats, traced.numbers, is_wide)
    return lambda arrays, draw: plain.run(arrays, draw=draw)[0], [*subject.given.arrays]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_it_adds_as_much_as_rounding_to_nearest_has(dtype):
    x = jax.random.uniform(jax.random.key(0), (200, 500), minval=1, maxval=2).astype(dtype)
    moved = jax.jit(functools.partial(shaken, number=3))(x, draw(1, x.size))
    steps = (moved.astype(np.float32) - x.astype(np.float32)) / float(jnp.finfo(dtype).eps)
    assert 0.8 < 12 * float(jnp.mean(steps**2)) < 1.2
    assert abs(float(jnp.mean(steps))) < 0.01


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "bfloat16", "float16", "float32"])
def test_what_was_not_rounded_stays(dtype):
    most = float(jnp.finfo(dtype).max)
    numbers = [0.0, 1.0, 2.0, -1.0, most, -most, jnp.nan]
    numbers += [jnp.inf, -jnp.inf] * (dtype != "float8_e4m3fn")
    x = jnp.tile(jnp.asarray(numbers, dtype), (400, 1))
    moved = shaken(x, draw(1, x.size), 0).astype(np.float32)
    given = x.astype(np.float32)
    np.testing.assert_array_equal(moved[:, :4], given[:, :4])
    assert jnp.isfinite(moved[:, 4:6]).all()
    np.testing.assert_array_equal(moved[:, 6:], given[:, 6:])


def in_a_scan(x):
    return jax.lax.scan(lambda x, _: (x * 1.0001, None), x, length=TURNS)[0]


def in_nested_scans(x):
    inner = lambda x, _: (x * 1.0001, None)
    outer = lambda x, _: (jax.lax.scan(inner, x, length=TURNS // 30)[0], None)
    return jax.lax.scan(outer, x, length=30)[0]


def in_a_while_loop(x):
    step = lambda turn: (turn[0] + 1, turn[1] * 1.0001)
    return jax.lax.while_loop(lambda turn: turn[0] < TURNS, step, (0, x))[1]


@pytest.mark.parametrize("f", [in_a_scan, in_nested_scans, in_a_while_loop])
def test_each_turn_of_a_loop_rounds_otherwise(f):
    run, arrays = plain_of(f, jnp.linspace(1, 1.8, 512, dtype=np.float32))
    run = jax.jit(run)
    base, made = (run(arrays, draw(seed, 512))[0] for seed in (0, 1))
    units = (made - base) / base / float(jnp.finfo(np.float32).eps)
    # The root of 900 / 12 is 8.7 units of numbers of [1, 2); the same steps give 260.
    assert 3 < float(jnp.sqrt(jnp.mean(units**2))) < 20


def test_a_constant_is_the_same_in_each_turn():
    third = np.float32(1 / 3)

    def f(x):
        return jax.lax.scan(lambda x, _: (x + third, None), x, length=TURNS)[0]

    formats = Formats(np.dtype("float64"))
    run, arrays = plain_of(f, jnp.zeros(1, np.float32), formats=formats, is_wide=True)
    run = jax.jit(run)
    made = [float(run(arrays, draw(seed, 1, False))[0][0]) for seed in range(17)]
    units = (np.array(made[1:]) / made[0] - 1) / np.finfo(np.float32).eps
    # Up to half a unit, evenly; constants that vary have a thirtieth of it.
    assert 0.1 < np.sqrt(np.mean(units**2)) < 0.5


@pytest.mark.parametrize("is_reverse", [False, True])
def test_partial_sums_round_by_how_many_they_add(is_reverse):
    def f(x):
        return jax.lax.cumsum(x, axis=1, reverse=is_reverse)

    run, arrays = plain_of(f, jax.random.uniform(jax.random.key(0), (400, 900)))
    run = jax.jit(run)
    base, made = (run(arrays, draw(seed, 400 * 900))[0] for seed in (0, 1))
    off = jnp.sqrt(jnp.mean((made - base) ** 2, 0))
    first, last = (float(off[n]) for n in ((-100, 100) if is_reverse else (100, -100)))
    # The sums are 8 times as many: 8 times as large, and off by the root of 8 units.
    assert 15 < last / first < 35


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_it_adds_few_operations_to_each_that_rounds(dtype):
    count = 40

    def f(x):
        for _ in range(count):
            x = jnp.sin(x) * 1.25
        return x

    run, arrays = plain_of(f, jnp.ones((4, 8), dtype))
    lowered = (jax.jit(run).lower(arrays, each) for each in (draw(0, 32), None))
    drawn, bare = (len(re.findall("= stablehlo", each.as_text())) for each in lowered)
    assert drawn - bare <= 14 * (2 * count + 1)  # 35 took five times as long to compile
