"""Prodigy and Fromage against every record of the authors' own trajectories."""

import jax
import jax.numpy as jnp
import optax
import pytest

from dtypeguard import fromage, prodigy
from tests.support.helpers import set_x64
from tests.support.reference import cases, distance, rate, run

PRODIGY = cases("prodigy")
FROMAGE = cases("fromage")


def optimizer(case):
    h, learning_rate = case["hyperparameters"], rate(case, jnp.float64)
    if case["optimizer"] == "fromage":
        return fromage(learning_rate, p_bound=h["p_bound"])
    same = "beta3", "eps", "weight_decay", "safeguard_warmup", "use_bias_correction"
    return prodigy(
        learning_rate,
        betas=(h["beta1"], h["beta2"]),
        estim_lr0=h["d0"],
        estim_lr_coef=h["d_coef"],
        growth_rate=float(h["growth_rate"]),
        slice_p=h["slice_p"],
        **{name: h[name] for name in same},
    )


# Where Optax is wrong: without an average.
ALWAYS = "prodigy_beta1_zero", "prodigy_beta1_zero_bc"


def some(names):
    """Every sixth case, and all of them in CI."""
    return [
        pytest.param(x, marks=[pytest.mark.exhaustive] * (i % 6 > 0 and x not in ALWAYS))
        for i, x in enumerate(names)
    ]


@pytest.mark.parametrize("name", [*some(PRODIGY), *some(FROMAGE)])
def test_float64(name):
    case = (PRODIGY | FROMAGE)[name]
    with set_x64(True):
        reached = run(case, optimizer(case), jnp.float64)
    for record in case["records"]:
        params, state = reached[record["step"]]
        bound = lambda amplified, record=record: 1e-12 + 5e-15 * record[amplified]
        assert distance(params, record["params"]) <= bound("amp"), record["step"]
        if case["optimizer"] == "prodigy":
            gap = abs(float(state.estim_lr) - record["d"]) / record["d"]
            assert gap <= bound("amp_d"), record["step"]
            assert int(state.steps_taken) == record["k"]


@pytest.mark.parametrize("scheduled", [False, True], ids=["constant", "schedule"])
def test_fromage_in_float32_at_a_small_rate(scheduled):
    """2,000 steps at 1e-4, where optax's shrink is 0: 2e-6 of the float64 truth."""
    case = FROMAGE["fromage_lr_1e-4"]
    learning_rate, last = case["hyperparameters"]["lr"], case["records"][-1]
    if scheduled:
        learning_rate = lambda count: jnp.float32(case["hyperparameters"]["lr"])

    def error(factory):
        reached = run(case, factory(learning_rate), jnp.float32)
        return distance(reached[last["step"]][0], last["params"])

    assert error(fromage) < 2e-6
    if scheduled:
        with jax.numpy_dtype_promotion("standard"):
            assert error(optax.fromage) > 5e-6
