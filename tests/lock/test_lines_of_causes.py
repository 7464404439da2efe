"""The line that a lock names after a cast is added or taken out."""

import importlib.util
import pathlib
import re
import textwrap

import pytest

from dtypeguard._leaves.compat import HAS_NUMBERS
from dtypeguard._lock.check import compared, text_of
from dtypeguard._lock.step import lock_of

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8"),
]
HEAD = """
import jax, jax.numpy as jnp

BF16, F32 = jnp.bfloat16, jnp.float32
S = jax.ShapeDtypeStruct
"""
TWICE = """
    def dense(p, x):
        h = x @ p["w"]
        return h + p["b"]

    def apply(params, x):
        h = jnp.tanh(dense(params["a"], x))
        return dense(params["b"], h)

    def step(params, x):
        loss = lambda p: apply(p, x).astype(F32).sum()
        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    p = {"w": S((8, 8), BF16), "b": S((8,), BF16)}
    inputs = {"a": p, "b": p}, S((4, 8), BF16)
"""
# A program, a piece of it and what replaces that, and the line that is named then.
CHANGES = {
    "a cast below an unpacking taken out": (
        """
        def loss(w, x):
            return jnp.mean((x @ w) ** 2)

        def step(state, x):
            w, count = state
            x = x.astype(BF16)
            w = w - 0.1 * jax.grad(loss)(w, x)
            return w, count + 1

        inputs = (S((8, 8), BF16), S((), jnp.int32)), S((4, 8), F32)
        """,
        "    x = x.astype(BF16)\n",
        "",
        "w = w - 0.1 * jax.grad(loss)(w, x)",
    ),
    "params that are cast no longer": (
        """
        def loss(w, x):
            return jnp.mean((x @ w).astype(F32) ** 2)

        def step(state, x):
            w, count = state
            half = w.astype(BF16)
            grads = jax.grad(loss)(half, x)
            return w - 0.1 * grads, count + 1

        inputs = (S((8, 8), F32), S((), jnp.int32)), S((4, 8), BF16)
        """,
        "    half = w.astype(BF16)\n    grads = jax.grad(loss)(half, x)\n",
        "    grads = jax.grad(loss)(w, x)\n",
        "grads = jax.grad(loss)(w, x)",
    ),
    "params that are renamed before a lambda gets them": (
        """
        def model(w, x):
            return jnp.tanh(x @ w)

        def step(state, x):
            w, count = state
            half = w.astype(BF16)
            loss = lambda p: jnp.mean(model(p, x) ** 2)
            grads = jax.grad(loss)(half)
            return w - 0.1 * grads, count + 1

        inputs = (S((8, 8), F32), S((), jnp.int32)), S((4, 8), BF16)
        """,
        "    half = w.astype(BF16)\n",
        "    half = w\n",
        "half = w",
    ),
    "a cast below a reshape taken out": (
        """
        def model(w, x):
            x = x.reshape(-1, 8)
            x = x.astype(BF16)
            return jnp.tanh(x @ w).sum()

        def step(w, x):
            return w - jax.grad(model)(w, x)

        inputs = S((8, 8), BF16), S((2, 2, 8), F32)
        """,
        "    x = x.astype(BF16)\n",
        "",
        "return jnp.tanh(x @ w).sum()",
    ),
    "a cast added where a function returns": (
        TWICE,
        '    return h + p["b"]\n',
        '    return (h + p["b"]).astype(F32)\n',
        'return (h + p["b"]).astype(F32)',
    ),
    "a cast added in a function": (
        TWICE,
        '    h = x @ p["w"]\n',
        '    h = x.astype(F32) @ p["w"]\n',
        'h = x.astype(F32) @ p["w"]',
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_line_of_the_cast(tmp_path, name):
    program, old, new, line = CHANGES[name]
    text = HEAD + textwrap.dedent(program)
    assert text.count(old) == 1
    path = tmp_path / "step.lock"
    path.write_text(text_of(traced(tmp_path, "before", text).lock))
    report = compared(traced(tmp_path, "after", text.replace(old, new)), str(path)).report()
    assert re.search(rf": 1 cause\.\n.*train\.py:\d+: .*\n +{re.escape(line)}\n", report), (
        report
    )


def traced(folder, name, text):
    file = pathlib.Path(folder, name, "train.py")
    file.parent.mkdir()
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(f"lock_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lock_of(module.step, module.inputs, {}, str(folder / name / "step.lock"))
