"""The whole trainings of `docs/examples`: they learn, and keep their dtypes."""

import runpy

import jax
import jax.numpy as jnp
import pytest

from tests.support.helpers import need
from tests.support.pages import DOCS

pytestmark = pytest.mark.third_party


def _train(name, steps):
    return runpy.run_path(str(DOCS / "examples" / f"{name}.py"))["train"](steps)


def _float_dtypes(tree):
    dtypes = (leaf.dtype for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))
    return {dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)}


def test_optax_with_accumulation_in_bfloat16():
    params, state, losses = _train("optax_accumulation", 200)
    assert _float_dtypes((params, state.inner_opt_state)) == {jnp.dtype(jnp.bfloat16)}
    assert sum(losses[-8:]) < sum(losses[:8]) / 2


def test_an_equinox_step_with_x64():
    carry, losses = _train("equinox_x64", 60)
    assert _float_dtypes(carry) == {jnp.dtype(jnp.float32)}
    assert losses[-1] < losses[0] / 2


def test_nnx_with_autocast():
    need("flax.nnx")
    model, losses = _train("nnx_autocast", 60)
    assert model.hidden.kernel.dtype == jnp.float32
    assert losses[-1] < losses[0] / 2
