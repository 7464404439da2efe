"""The authors' own trajectories (`data/prodigy_fromage.json`) and how to run them."""

import functools
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

_DATA = json.loads(
    (pathlib.Path(__file__).parent / "data/prodigy_fromage.json").read_text()
)


def cases(optimizer: str) -> dict[str, dict[str, Any]]:
    """The cases of one optimizer, in float64, by name."""
    return {c["base"]: c for c in _DATA["cases"] if c["optimizer"] == optimizer}


def as_params(tree: Any, dtype: Any) -> Any:
    """The params of a record: dicts of nested lists (or a number) as dicts of arrays."""
    if isinstance(tree, dict):
        return {key: as_params(value, dtype) for key, value in tree.items()}
    return jax.device_put(np.asarray(tree, dtype))


def gradient(problem: dict[str, Any], dtype: Any) -> Any:
    """A function of the params and the step that gives the gradients of a problem."""
    if problem["kind"] == "given":
        given = as_params(problem["grads"], dtype)
        return lambda params, step: tree_util.tree_map(lambda g: g[step], given)
    loss = functools.partial(
        _LOSSES[problem["kind"]], problem, lambda x: as_params(x, dtype)
    )
    zero_steps = jnp.asarray(problem.get("grad_zero_steps", [-1]))

    def grads(params, step):
        zero = jnp.any(step == zero_steps)
        return tree_util.tree_map(lambda g: jnp.where(zero, 0, g), jax.grad(loss)(params))

    return grads


def _quadratic(problem, array, params):
    terms = tree_util.tree_map(
        lambda x, diag, target: jnp.sum(diag * (x - target) ** 2) / 2,
        params,
        array(problem["diag"]),
        array(problem["target"]),
    )
    return sum(tree_util.tree_leaves(terms))


def _rosenbrock(problem, array, params):
    x, y = params["xy"]
    return (problem["a"] - x) ** 2 + problem["b"] * (y - x**2) ** 2


def _logistic(problem, array, params):
    z = array(problem["X"]) @ params["w"] + params["b"]
    losses = jax.nn.softplus(z) - array(problem["y"]) * z
    return jnp.mean(losses) + 0.5 * problem["l2"] * jnp.sum(params["w"] ** 2)


def _mlp(problem, array, params):
    act = jnp.tanh if problem["activation"] == "tanh" else lambda x: x
    hidden = act(array(problem["X"]) @ params["layer1"]["w"] + params["layer1"]["b"])
    out = hidden @ params["layer2"]["w"] + params["layer2"]["b"]
    return 0.5 * jnp.mean((out - array(problem["Y"])) ** 2)


_LOSSES = {
    "quadratic": _quadratic,
    "rosenbrock": _rosenbrock,
    "logistic": _logistic,
    "mlp": _mlp,
}


def rate(case: dict[str, Any], dtype: Any) -> Any:
    """The learning rate of a case: a number, or a schedule over its steps."""
    settings = case["hyperparameters"]
    if settings["lr_per_step"] is None:
        return settings["lr"]
    rates = jnp.asarray(settings["lr_per_step"], dtype)
    return lambda count: rates[count]


def run(case: dict[str, Any], opt: Any, dtype: Any) -> dict[int, tuple[Any, Any]]:
    """Params and state of `opt` after each recorded step of a case."""
    grads = gradient(_DATA["problems"][case["problem"]], dtype)
    params = as_params(case["init_params"], dtype)

    def step(index, carry):
        params, state = carry
        updates, state = opt.update(grads(params, index), state, params)
        return tree_util.tree_map(lambda p, u: p + u, params, updates), state

    @jax.jit
    def several(carry, start, stop):
        return jax.lax.fori_loop(start, stop, step, carry)

    carry, done, out = (params, opt.init(params)), 0, {}
    for record in case["records"]:
        carry, done = several(carry, done, record["step"]), record["step"]
        out[done] = carry
    return out


def distance(params: Any, truth: Any) -> float:
    """The largest over the leaves of max|a - b| / max|b|; as |a - b| where b is 0."""
    leaves, treedef = tree_util.tree_flatten(params)
    truths = [np.asarray(leaf, np.float64) for leaf in treedef.flatten_up_to(truth)]
    gaps = [np.abs(np.asarray(a, np.float64) - b) for a, b in zip(leaves, truths)]
    return max(gap.max() / (np.abs(b).max() or 1.0) for gap, b in zip(gaps, truths))
