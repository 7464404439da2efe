"""What several test files compare: structure, types and values together."""

import functools
import importlib
import importlib.util
import inspect
import io
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import tree_util

from dtypeguard._leaves.compat import (
    CAN_COPY as CAN_COPY,
    HAS_EXPLICIT_X64,
    HAS_NUMBERS,
    HAS_X64_SCOPE as HAS_X64_SCOPE,
    set_explicit_x64 as set_explicit_x64,
    set_x64 as set_x64,
    x64_enabled as x64_enabled,
)
from dtypeguard._sweep.checks import RULES as RULES

SUPPORT = pathlib.Path(__file__).parent
OPTAX = tuple(int(part) for part in optax.__version__.split(".")[:3])
# For a process of its own, as for the tests in pyproject.toml.
WARNINGS_ARE_ERRORS = (
    *("-W", "error"),
    *("-W", "ignore:Error reading persistent compilation cache"),
    *("-W", "ignore:Error writing persistent compilation cache"),
)
needs_x64_scope = pytest.mark.skipif(not HAS_X64_SCOPE, reason="needs JAX >= 0.7")
needs_numbers = pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")
needs_explicit_x64 = pytest.mark.skipif(not HAS_EXPLICIT_X64, reason="needs JAX >= 0.10")
# For files of programs as users write them, whose numbers are measured.
users_programs = [pytest.mark.third_party, needs_numbers]


def in_optax(name: str) -> bool:
    """Whether the installed Optax has this name, which may have dots."""
    try:
        functools.reduce(getattr, name.split("."), optax)
    except AttributeError:
        return False
    return True


# The lines that make arrays are recorded from Python 3.12 on.
IS_RECORDED = sys.version_info >= (3, 12)
needs_record = pytest.mark.skipif(not IS_RECORDED, reason="needs sys.monitoring")


def need(name: str) -> Any:
    """The module; skips the test where its package is missing, fails it in CI."""
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        reason = f"{package} is not installed: pip install 'dtypeguard[test]'"
        if os.environ.get("CI") or os.environ.get("DTYPEGUARD_REQUIRE_ALL"):
            pytest.fail(reason)
        pytest.skip(reason)
    return importlib.import_module(name)


def child_variables() -> dict[str, str]:
    """The environment of a process that has this checkout and one CPU device."""
    checkout = str(SUPPORT.parents[1])
    flags = "--xla_force_host_platform_device_count=1"
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([checkout, os.environ.get("PYTHONPATH", "")]),
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}",
    }


def run_python(*words: Any, **options: Any) -> subprocess.CompletedProcess:
    """What Python exits with and prints in a process of its own."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, env=child_variables(), capture_output=True, text=True, **options
    )


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def types(tree: Any) -> Any:
    """Dtype, weak type and shape of every leaf, as jit sees them, in the tree."""

    def describe(leaf):
        is_typed = isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))
        dtype = leaf.dtype if is_typed else jax.dtypes.result_type(leaf)
        weak = getattr(leaf, "weak_type", isinstance(leaf, (bool, int, float, complex)))
        return str(dtype), weak, np.shape(leaf)

    return tree_util.tree_map(describe, tree)


def dtypes(tree: Any) -> set[str]:
    """The names of the dtypes of the leaves of a tree."""
    return {str(leaf.dtype) for leaf in tree_util.tree_leaves(tree)}


def assert_same(one: Any, other: Any) -> None:
    """Two trees are equal in structure, types and bits."""
    assert tree_util.tree_structure(one) == tree_util.tree_structure(other)
    for (path, a), b in zip(
        tree_util.tree_flatten_with_path(one)[0], tree_util.tree_leaves(other)
    ):
        where = tree_util.keystr(path)
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        assert _bits(a) == _bits(b), f"{where}: {a} != {b}"


def assert_close(one: Any, other: Any, **tolerance: Any) -> None:
    """Two trees are equal in structure and types, and near in values."""
    assert types(one) == types(other)
    for a, b in zip(tree_util.tree_leaves(one), tree_util.tree_leaves(other)):
        wide = np.complex128 if np.iscomplexobj(a) else np.float64
        a, b = (np.asarray(leaf).astype(wide) for leaf in (a, b))
        np.testing.assert_allclose(a, b, **tolerance)


def off(made: Any, exact: Any) -> Any:
    """How far off a result is, relative to the exact one."""
    made, exact = (np.asarray(x, np.float64) for x in (made, exact))
    return np.linalg.norm(made - exact) / max(np.linalg.norm(exact), 1e-300)


def average(mean: Any, xs: Any) -> Any:
    """A moving average with a decay that bfloat16 rounds to 1."""
    return jax.lax.scan(lambda mean, x: (0.999 * mean + 0.001 * x, None), mean, xs)[0]


def normal(seed: int, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    """Draws an array in float32, and rounds it to a dtype, of which nothing is compiled."""
    return jax.device_put(
        np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)
    )


def _bits(leaf: Any) -> bytes:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()


def marked(function: Callable, mark: str = "# loses") -> int:
    """The line of a function that ends in a mark."""
    lines, first = inspect.getsourcelines(function)
    (found,) = (n for n, line in enumerate(lines) if line.endswith(f"{mark}\n"))
    return first + found


def some(cases, count):
    """Cases of a parametrized test, of which the first ones run with all tests."""
    return [
        pytest.param(case, marks=[pytest.mark.exhaustive] * (number >= count))
        for number, case in enumerate(cases)
    ]
