"""The five reports behind dtypeguard, each as its user would have written it.

`run` is that user's program, given an optimizer. It raises where the program did, and an
`AssertionError` where it ends with wrong numbers. As a script this prints, as JSON, how
each report fares in the installed release.
"""

import dataclasses
import json
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax import lax, tree_util
from numpy.testing import assert_allclose

import dtypeguard
from tests.support.dtypes import BF16, F32
from tests.support.helpers import in_optax, set_x64

MISSING, RAISES, WRONG, PASSES = "missing", "raises", "wrong", "passes"
START, GOAL = np.array([3.0, -2.0, 0.5, 1.0]), np.array([1.0, 1.0, -1.0, 2.0])


def distance(params):
    """A loss with its minimum at GOAL."""
    goal = jnp.asarray(GOAL, params["w"].dtype)
    return jnp.sum(jnp.arange(1, 5, dtype=goal.dtype) * (params["w"] - goal) ** 2)


def apply(params, updates) -> Any:
    """`optax.apply_updates`, whose type is a tree of anything."""
    return optax.apply_updates(params, updates)


def start(dtype):
    return {"w": jnp.asarray(START, dtype)}


def prodigy_under_x64(opt):
    """A scan over steps with x64 on and float32 params."""

    @jax.jit
    def train(params):
        def step(carry, _):
            params, state = carry
            updates, state = opt.update(jax.grad(distance)(params), state, params)
            return (apply(params, updates), state), None

        return lax.scan(step, (params, opt.init(params)), None, length=400)[0][0]

    params = train(start(F32))
    assert params["w"].dtype == F32
    assert_allclose(params["w"], GOAL, atol=1e-2)


def schedule_free_in_multi_steps(opt):
    """bfloat16 params, four mini-steps to a step; by hand in float32 the truth."""
    noise = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32) / 4
    params = start(BF16)
    state = opt.init(params)

    @jax.jit
    def step(params, state, noise):
        grads = tree_util.tree_map(lambda g: g + noise, jax.grad(distance)(params))
        updates, state = opt.update(grads, state, params)
        return apply(params, updates), state

    for row in jnp.asarray(noise, BF16):
        params, state = step(params, state, row)
    assert params["w"].dtype == BF16

    inner, truth = schedule_free(), start(F32)
    state = inner.init(truth)
    for rows in noise.reshape(10, 4, 4):
        grads = {"w": jax.grad(distance)(truth)["w"] + rows.mean(axis=0)}
        updates, state = inner.update(grads, state, truth)
        truth = apply(truth, updates)
    assert_allclose(np.float32(params["w"]), truth["w"], atol=0.05)


def lbfgs_in_equinox_scan(opt):
    """`equinox.internal.scan` over steps with x64 on and float32 params."""

    def step(carry, _):
        params, state = carry
        value, grads = jax.value_and_grad(distance)(params)
        updates, state = opt.update(
            grads, state, params, value=value, grad=grads, value_fn=distance
        )
        return (eqx.apply_updates(params, updates), state), value

    @jax.jit
    def train(params):
        carry = params, opt.init(params)
        return eqxi.scan(step, carry, jnp.zeros(60, F32), kind="lax")[0][0]

    params = train(start(F32))
    assert params["w"].dtype == F32
    assert_allclose(params["w"], GOAL, atol=1e-3)


def decay(count):
    return 0.1 * 0.9**count


def fromage_with_schedule(opt):
    """A learning rate that falls; equation (3) of arXiv 2002.03432 in float64 the truth."""
    params = start(F32)
    state = opt.init(params)
    truth = START.copy()
    for count in range(20):
        updates, state = opt.update(jax.grad(distance)(params), state, params)
        params = apply(params, updates)
        grads, rate = 2 * np.arange(1, 5) * (truth - GOAL), 0.1 * 0.9**count
        step = rate * grads * np.linalg.norm(truth) / np.linalg.norm(grads)
        truth = (truth - step) / np.sqrt(1 + rate**2)
    assert_allclose(params["w"], truth, rtol=1e-4)


def zero_nans_in_multi_steps(opt):
    """One NaN among the gradients of two mini-steps; by hand the truth."""
    params = start(F32)
    step = jax.jit(opt.update)
    state = opt.init(params)
    for grads in ([1.0, np.nan, 3.0, 4.0], [3.0, 1.0, 1.0, 0.0]):
        updates, state = step({"w": jnp.asarray(grads, F32)}, state, params)
        params = apply(params, updates)
    assert_allclose(params["w"], START - 0.5 * np.array([2.0, 0.0, 2.0, 2.0]), rtol=1e-6)


def schedule_free():
    return optax.contrib.schedule_free(optax.sgd(0.05), learning_rate=0.05, b1=0.9)


def zero_nans():
    return optax.chain(optax.zero_nans(), optax.sgd(0.5))


@dataclasses.dataclass(frozen=True)
class Report:
    """One report.

    Args:
        id: its name in the tests.
        title: its name in docs/contract.md.
        needs: the name in Optax that an old release may lack.
        run: the user's program, given an optimizer.
        bare: makes that optimizer with Optax alone.
        parts: makes it with dtypeguard, in each way that the pages name.
        live: how the bare program fails, by the release of Optax. In any other of
            `releases.py` it passes, or the optimizer is missing.
        x64: whether the program runs with `jax_enable_x64`.
    """

    id: str
    title: str
    needs: str
    run: Callable[[Any], None]
    bare: Callable[[], Any]
    parts: dict[str, Callable[[], Any]]
    live: dict[str, str]
    x64: bool = False


REPORTS = (
    Report(
        id="prodigy",
        title="`prodigy` in a scan, x64",
        needs="contrib.prodigy",
        run=prodigy_under_x64,
        bare=lambda: optax.contrib.prodigy(),
        parts={
            "guard": lambda: dtypeguard.guard(optax.contrib.prodigy()),
            "prodigy": dtypeguard.prodigy,
        },
        live={"0.1.9": RAISES, "0.2.3": RAISES},
        x64=True,
    ),
    Report(
        id="schedule_free",
        title="`schedule_free` in `MultiSteps`, bfloat16",
        needs="contrib.schedule_free",
        run=schedule_free_in_multi_steps,
        bare=lambda: optax.MultiSteps(schedule_free(), 4),
        parts={
            "guard": lambda: dtypeguard.guard(optax.MultiSteps(schedule_free(), 4)),
            "multi_steps": lambda: dtypeguard.guard(
                dtypeguard.multi_steps(schedule_free(), 4)
            ),
        },
        live={"0.2.3": RAISES},
    ),
    Report(
        id="lbfgs",
        title="`lbfgs` in `equinox.internal.scan`, x64",
        needs="lbfgs",
        run=lbfgs_in_equinox_scan,
        bare=lambda: optax.lbfgs(),
        parts={"guard": lambda: dtypeguard.guard(optax.lbfgs())},
        live={"0.2.3": RAISES, "0.2.4": RAISES},
        x64=True,
    ),
    Report(
        id="fromage",
        title="`fromage` with a schedule",
        needs="fromage",
        run=fromage_with_schedule,
        bare=lambda: optax.fromage(decay),
        parts={"fromage": lambda: dtypeguard.fromage(decay)},
        # In 0.2.6 the schedule of its weight decay stands still at count 0.
        live=dict.fromkeys(("0.1.9", "0.2.3", "0.2.4", "0.2.5"), RAISES) | {"0.2.6": WRONG},
    ),
    Report(
        id="zero_nans",
        title="`zero_nans` in `MultiSteps`",
        needs="zero_nans",
        run=zero_nans_in_multi_steps,
        bare=lambda: optax.MultiSteps(zero_nans(), 2),
        parts={"multi_steps": lambda: dtypeguard.multi_steps(zero_nans(), 2)},
        live={"0.1.9": RAISES},
    ),
)


def outcomes(report: Report) -> dict[str, str]:
    """How the report's program fares, in one of four words: bare, and with each part."""
    builds = {"bare": report.bare, **report.parts}
    return {name: _outcome(report, build) for name, build in builds.items()}


def _outcome(report: Report, build: Callable[[], Any]) -> str:
    if not in_optax(report.needs):
        return MISSING
    try:
        with set_x64(report.x64), warnings.catch_warnings():
            # That a second attempt was needed is no failure.
            warnings.simplefilter("ignore", dtypeguard.DtypeGuardWarning)
            report.run(build())
    except AssertionError:
        return WRONG
    except Exception:
        return RAISES
    return PASSES


def cell(found: dict[str, str]) -> str:
    """The cell in the table of docs/contract.md for some outcomes."""
    bare, *ours = found.values()
    return (
        "not there yet" if bare == MISSING else f"{bare} → {' or '.join(sorted({*ours}))}"
    )


if __name__ == "__main__":
    print(json.dumps({report.title: cell(outcomes(report)) for report in REPORTS}))
