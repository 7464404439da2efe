"""Prodigy and Fromage against every record of the authors' own trajectories."""

import jax
import jax.numpy as jnp
import optax
import pytest
from helpers import set_x64
from reference import cases, distance, rate, run

from dtypeguard import fromage, guard, prodigy

PRODIGY = cases("prodigy")
FROMAGE = cases("fromage")


def prodigy_of(case, dtype, make=prodigy):
    h = case["hyperparameters"]
    return make(
        rate(case, dtype),
        betas=(h["beta1"], h["beta2"]),
        beta3=h["beta3"],
        eps=h["eps"],
        estim_lr0=h["d0"],
        estim_lr_coef=h["d_coef"],
        weight_decay=h["weight_decay"],
        safeguard_warmup=h["safeguard_warmup"],
        use_bias_correction=h["use_bias_correction"],
        growth_rate=float(h["growth_rate"]),
        slice_p=h["slice_p"],
    )


def fromage_of(case, dtype):
    return fromage(rate(case, dtype), p_bound=case["hyperparameters"]["p_bound"])


# Where Optax is wrong: without an average.
ALWAYS = "prodigy_beta1_zero", "prodigy_beta1_zero_bc"


def ways(names):
    """Every sixth case bare, all of them in CI; some guarded, which is the same program.

    `test_optimized_hlo_is_the_bare_one` compares the programs.
    """
    bare = [
        pytest.param(name, lambda opt: opt, id=f"{name}-bare", marks=marks)
        for number, name in enumerate(names)
        for marks in [[pytest.mark.exhaustive] * (number % 6 > 0 and name not in ALWAYS)]
    ]
    guarded = [pytest.param(n, guard, id=f"{n}-guarded") for n in list(names)[1::12]]
    return pytest.mark.parametrize(("name", "wrap"), bare + guarded)


def bound(record, amplified="amp"):
    return 1e-12 + 5e-15 * record[amplified]


@ways(PRODIGY)
def test_prodigy_in_float64(name, wrap):
    case = PRODIGY[name]
    with set_x64(True):
        reached = run(case, wrap(prodigy_of(case, jnp.float64)), jnp.float64)
        for record in case["records"]:
            params, state = reached[record["step"]]
            assert distance(params, record["params"]) <= bound(record), record["step"]
            gap = abs(float(state.estim_lr) - record["d"]) / record["d"]
            assert gap <= bound(record, "amp_d"), record["step"]
            assert int(state.steps_taken) == record["k"]


@ways(FROMAGE)
def test_fromage_in_float64(name, wrap):
    case = FROMAGE[name]
    with set_x64(True):
        reached = run(case, wrap(fromage_of(case, jnp.float64)), jnp.float64)
        for record in case["records"]:
            params, _ = reached[record["step"]]
            assert distance(params, record["params"]) <= bound(record), record["step"]


@pytest.mark.parametrize("scheduled", [False, True], ids=["constant", "schedule"])
def test_fromage_in_float32_at_a_small_rate(scheduled):
    """2,000 steps at 1e-4, where optax's shrink is 0: 2e-6 of the float64 truth."""
    case = FROMAGE["fromage_lr_1e-4"]
    learning_rate = case["hyperparameters"]["lr"]
    schedule = lambda count: jnp.asarray(learning_rate, jnp.float32)
    make = lambda factory: factory(schedule if scheduled else learning_rate)
    (step,) = [record["step"] for record in case["records"]][-1:]
    truth = case["records"][-1]["params"]
    assert distance(run(case, make(fromage), jnp.float32)[step][0], truth) < 2e-6
    if scheduled:
        with jax.numpy_dtype_promotion("standard"):
            assert (
                distance(run(case, make(optax.fromage), jnp.float32)[step][0], truth) > 5e-6
            )
