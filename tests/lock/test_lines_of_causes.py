"""The lines that a lock names after casts are added or taken out in small programs."""

import textwrap

import pytest

from tests.support.locks import compared, lock_text, traced

pytestmark = pytest.mark.third_party
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
MODEL = """
    def model(w, x):
        return jnp.tanh(x @ w)

    def step(state, x):
        w, count = state
        half = w.astype(BF16)
        loss = lambda p: jnp.mean(model(p, x) ** 2)
        grads = jax.grad(loss)(half)
        return w - 0.1 * grads, count + 1

    inputs = (S((8, 8), F32), S((), jnp.int32)), S((4, 8), BF16)
"""
# A program, pieces of it, each with what replaces it, and the lines that are named then.
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
        {"    x = x.astype(BF16)\n": ""},
        ["w = w - 0.1 * jax.grad(loss)(w, x)"],
    ),
    "params that are cast no longer": (
        MODEL,
        {"    half = w.astype(BF16)\n": "", "jax.grad(loss)(half)": "jax.grad(loss)(w)"},
        ["grads = jax.grad(loss)(w)"],
    ),
    "params that are renamed before a lambda gets them": (
        MODEL,
        {"half = w.astype(BF16)": "half = w"},
        ["half = w"],
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
        {"    x = x.astype(BF16)\n": ""},
        ["return jnp.tanh(x @ w).sum()"],
    ),
    "a cast added where a function returns": (
        TWICE,
        {'return h + p["b"]': 'return (h + p["b"]).astype(F32)'},
        ['return (h + p["b"]).astype(F32)'],
    ),
    "a cast added in a function": (
        TWICE,
        {'h = x @ p["w"]': 'h = x.astype(F32) @ p["w"]'},
        ['h = x.astype(F32) @ p["w"]'],
    ),
    "a cast added to what a caller casts anyway": (
        """
        def norm(x, g):
            m = jnp.mean(x, -1, keepdims=True)
            v = jnp.mean(x * x, -1, keepdims=True) - m * m
            return (x - m) * jax.lax.rsqrt(v) * g

        def loss(w, x):
            return jnp.mean((norm(x, w[0]) @ w - x).astype(F32) ** 2)

        def step(w, x):
            return jax.grad(loss)(w, x)

        inputs = S((8, 8), BF16), S((4, 8), BF16)
        """,
        {"m = jnp.mean": "x = x.astype(F32); m = jnp.mean"},
        ["x = x.astype(F32); m = jnp.mean(x, -1, keepdims=True)"],
    ),
    "a cast taken out where a function returns": (
        """
        def step(x, w):
            def up(x):
                return (x @ w).astype(F32)

            return jnp.tanh(up(x))

        inputs = [S((4, 4), BF16)] * 2
        """,
        {"(x @ w).astype(F32)": "x @ w"},
        ["return x @ w"],
    ),
    "two changes in a function and one elsewhere": (
        """
        def step(x, w):
            def inner(x):
                a = x.astype(F32)
                b = jnp.tanh(a)
                c = jnp.sin(x.astype(F32))
                return b.sum() + c.sum()

            return inner(x), jnp.exp(w.astype(F32))

        inputs = [S((4, 4), BF16)] * 2
        """,
        {"a = x.astype(F32)": "a = x", "sin(x.astype(F32)": "sin(x.astype(jnp.float16)"}
        | {"exp(w.astype(F32))": "exp(w)"},
        ["a = x", "c = jnp.sin(x.astype(jnp.float16))", "return inner(x), jnp.exp(w)"],
    ),
    "one of two equal casts taken out": (
        """
        def step(x, w):
            a = x.astype(F32)
            b = w.astype(F32)
            return jnp.tanh(a), jnp.exp(b)

        inputs = [S((4, 4), BF16)] * 2
        """,
        {"a = x.astype(F32)": "a = x"},
        ["a = x"],
    ),
    "one of two equal casts taken out, below the other one": (
        """
        def norm(x, g):
            h = x.astype(F32)
            return h * g.astype(F32)

        def step(x, g):
            return norm(x, g).astype(BF16) @ x

        inputs = [S((4, 4), BF16)] * 2
        """,
        {"g.astype(F32)": "g"},
        ["return h * g"],
    ),
    "a function that is called twice, in the second call": (
        """
        def step(x, y, w):
            a = jnp.matmul(x, w, preferred_element_type=F32)
            b = jnp.matmul(y, w, preferred_element_type=F32)
            return a + b

        inputs = [S((4, 4), BF16)] * 3
        """,
        {"jnp.matmul(y, w, preferred_element_type=F32)": "jnp.matmul(y, w)"},
        ["b = jnp.matmul(y, w)"],
    ),
}


def compared_to(folder, before, after):
    """A program beside the lock of another one."""
    path = folder / "step.lock"
    path.write_text(lock_text(traced(folder, before).lock))
    return compared(traced(folder, after), str(path))


@pytest.mark.parametrize("name", CHANGES)
def test_the_lines_of_the_casts(tmp_path, name):
    program, edits, lines = CHANGES[name]
    text = before = HEAD + textwrap.dedent(program)
    assert compared_to(tmp_path, before, before).holds
    for old, new in edits.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    report = compared_to(tmp_path, before, text).report()
    assert report.splitlines()[0].endswith(": 1 cause.") is (len(lines) == 1)
    assert report.splitlines()[2].strip() == lines[0]
    assert {*lines} <= {line.strip() for line in report.splitlines()}, report


def test_lines_that_a_lock_does_not_tell_apart_are_all_named(tmp_path):
    """One of two calls becomes as the other: which one it was, the types do not say."""
    program, edits, _ = CHANGES["a function that is called twice, in the second call"]
    text = HEAD + textwrap.dedent(program)
    ((new, old),) = edits.items()
    report = compared_to(tmp_path, text.replace(new, old), text).report()
    assert report.count(" = jnp.matmul(") == 2, report
