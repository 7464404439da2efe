"""Random numeric programs as source: in mixed dtypes, or in float64."""

import linecache
import random

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

DTYPES = {"BF16": jnp.bfloat16, "F16": jnp.float16, "F32": jnp.float32}
SIZE = 4

# Expressions of two values of one shape, {a} and {b}, a number {c} and a dtype {D}.
EXACT = (
    "{a}[I]",
    "-{a}",
    "jnp.abs({a})",
    "jnp.maximum({a}, {b})",
    "jnp.where(M, {a}, {b})",
    "jnp.roll({a}, 1, 0)",
    "jnp.pad({a}, 1)[:4, :4]",
    "jnp.concatenate([{a}[:2], {a}[2:]])",
    "{a}.at[J].set({b}[0].astype({a}.dtype))",
    "{a}.astype(F32)",
    "lax.scan(lambda h, x: (x, h), {a}[0], {a})[1]",
)
ROUNDING = (
    *("jnp.sin({a})", "jnp.exp(-jnp.abs({a}))", "lax.rsqrt(jnp.abs({a}) + {c})"),
    *("{a} * {c}", "{c} - {a}", "{a} + {b}", "{a} * {b}", "{a} / (jnp.abs({b}) + {c})"),
    *("jnp.minimum({a}, {c})", "jnp.where(M, {a}, {c})", "{a} ** 3", "jnp.log1p({a} ** 2)"),
    *(
        "jnp.sum({a}, 0) + {b}",
        "jnp.mean({a}, 1, keepdims=True) * {b}",
        "jnp.var({a}, 0) + {b}",
    ),
    *("jax.nn.softmax({a})", "jax.nn.logsumexp({a}, 1) - {b}", "jnp.cumsum({a}, 0)"),
    *("lax.cumlogsumexp({a})", "jnp.linalg.norm({a}, axis=0) + {b}", "jax.nn.silu({a})"),
    *("{a} @ {b}", "jnp.dot({a}, {b}, preferred_element_type=F32).astype({D})"),
    *(
        "{a}.at[I].add({b}.astype({a}.dtype))",
        "{a}.at[I].apply(lambda x: x * 0.75)",
        "{a}.astype({D})",
    ),
    "lax.conv({a}[None, None], {a}[None, None, :3, :3], (1, 1), 'SAME')[0, 0]",
    "lax.scan(lambda h, x: (h * {c} + x, h), {a}[0], {b}.astype({a}.dtype))[1]",
    "lax.fori_loop(0, I[2], lambda i, h: (jnp.sin(h) + {b}).astype({a}.dtype), {a})",
    "lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * {c}), (0, {a}))[1]",
    "lax.cond(I[0] > 1, lambda x: x * {c}, jnp.sin, {a})",
    "jax.vmap(lambda x, i: lax.fori_loop(0, i, lambda _, h: h * {c}, x))({a}, I)",
    "lax.associative_scan(lambda x, y: x * y + {c}, {a} / 2)",
    "jax.jit(lambda x, y: x * {c} + y)({a}, {b})",
    "jax.checkpoint(lambda x: jnp.sin(x) * {c})({a})",
    "jax.grad(lambda x: jnp.sum(jnp.tanh(x * {c}) * {b}))({a})",
    "jax.grad(lambda x: jnp.sum(jax.nn.softmax(x * {b}) ** 2))({a})",
    "jax.jvp(lambda x: jnp.exp(-x * x) * {c}, ({a},), ({b}.astype({a}.dtype),))[1]",
    "jnp.linalg.cholesky(({a} @ {a}.T / 4 + 2 * jnp.eye(4)).astype(F32)).astype({D})",
    "jnp.linalg.solve(({a} @ {a}.T / 4 + 2 * jnp.eye(4)).astype(F32), {b}.astype(F32))",
    "{a} + jax.random.uniform(K, (4, 4), np.float32).astype({D})",
)


def source(seed: int) -> str:
    """A function of `x`, `y` and `z`, each of whose six lines computes one more value."""
    choose = random.Random(seed)
    names, text = ["x", "y", "z"], ["def f(x, y, z):"]
    for number in range(6):
        form = choose.choice(EXACT if choose.random() < 0.25 else ROUNDING)
        code = form.format(
            a=choose.choice(names[-4:]),
            b=choose.choice(names),
            c=choose.choice(["0.9", "1.1", "0.3", "0.999", "2.0", "3"]),
            D=choose.choice(list(DTYPES)),
        )
        bounded = form in EXACT or choose.random() < 0.4
        text.append(f"    v{number} = {code if bounded else f'jnp.tanh({code}) * 2'}")
        names.append(f"v{number}")
    return "\n".join([*text, f"    return {', '.join(names[3:])}"])


def compiled(text: str, name: str, wide: bool = False):
    """The function of a source; with `wide`, all its dtypes are float64."""
    known = dict.fromkeys(DTYPES, jnp.float64) if wide else dict(DTYPES)
    known |= {"jax": jax, "jnp": jnp, "np": np, "lax": lax}
    known |= {"I": jnp.array([2, 0, 3, 1], np.int32), "J": jnp.array([1, 3], np.int32)}
    known |= {"M": np.arange(16).reshape(4, 4) % 3 == 0, "K": jax.random.key(3)}
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    exec(compile(text, name, "exec"), known)
    return known["f"]


def inputs(seed: int) -> list[jax.Array]:
    """One in each dtype."""
    choose = np.random.default_rng(seed)
    dtypes = choose.permutation(list(DTYPES.values()))
    return [jax.device_put(choose.normal(size=(SIZE, SIZE)).astype(d)) for d in dtypes]
