"""The page of messages has the words of each message that a note explains."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.support.advice import notes, raised
from tests.support.dtypes import BF16, F32
from tests.support.pages import DOCS

JAX = tuple(int(part) for part in jax.__version__.split(".")[:2])
NARROW, WIDE, WHOLE = jnp.ones(3, BF16), jnp.ones(3), jnp.arange(3)
SHORT = jnp.ones(3, jnp.int4)
TABLE, START, SHORT_START = jnp.ones((3, 3)), jnp.int32(1), jnp.int8(1)


def update(x):
    return x * WIDE


def skip(x):
    return x


@jax.numpy_dtype_promotion("strict")
def sum_strictly():
    return NARROW + WIDE


KEY = jax.random.PRNGKey(0)


def exported():
    export = pytest.importorskip("jax.export").export
    return export(jax.jit(skip))(WIDE).call(NARROW)


def referred():
    if not hasattr(jax, "new_ref"):
        pytest.skip("before JAX 0.7")
    jax.new_ref(NARROW)[...] = WIDE


def doubled(x):
    return x * 2


wide_rule = jax.custom_vjp(doubled)
wide_rule.defvjp(lambda x: (doubled(x), None), lambda _, g: (g * WIDE,))
GRADIENTS = jax.grad(lambda x, n: x * n, argnums=(0, 1), allow_int=True)(1.0, 2)


RAISING = {
    "donated": lambda: jax.jit(lambda x, y: (x, y), donate_argnums=(0, 1))(WIDE, WIDE),
    "NumPy's index": lambda: np.zeros(3)[WIDE],
    "short ints": lambda: jnp.sum(SHORT),
    "limits": lambda: jnp.finfo(WHOLE.dtype),
    "cotangent": lambda: jax.jit(jax.grad(lambda x: (wide_rule(x) * x).sum()))(NARROW),
    "gradient of an int": lambda: NARROW + GRADIENTS[1],
    "exported": exported,
    "reference": referred,
    "transposed": lambda: jax.linear_transpose(skip, NARROW)(WIDE),
    "scan": lambda: lax.scan(lambda carry, x: (update(carry), x), NARROW, WIDE),
    "while_loop": lambda: lax.while_loop(lambda x: jnp.all(x < 3), update, NARROW),
    "fori_loop": lambda: lax.fori_loop(0, 3, lambda i, x: update(x), NARROW),
    "cond": lambda: lax.cond(True, update, skip, NARROW),
    "switch": lambda: lax.switch(1, [skip, update], NARROW),
    "associative_scan": lambda: lax.associative_scan(lambda x, y: x * y * WIDE[:1], NARROW),
    "slice": lambda: lax.dynamic_update_slice(NARROW, WIDE, (0,)),
    "select": lambda: lax.select(NARROW > 0, WIDE, NARROW),
    "bounds": lambda: lax.fori_loop(0, F32(3), lambda i, x: x, WIDE),
    "strict": sum_strictly,
    "index": lambda: WIDE[F32(1)],
    "start": lambda: lax.dynamic_slice(WIDE, (F32(1),), (1,)),
    "starts of two widths": lambda: lax.dynamic_slice(TABLE, (START, SHORT_START), (1, 1)),
    "which": lambda: lax.select(WIDE, WIDE, WIDE),
    "take": lambda: jnp.take(WIDE, F32(1)),
    "take_along": lambda: jnp.take_along_axis(WIDE, WIDE, 0),
    "bincount": lambda: jnp.bincount(WIDE),
    "size": lambda: WIDE[: 3 / 2],
    "shape": lambda: jnp.zeros(3.0),
    "seed": lambda: jax.random.PRNGKey(1.5),
    "permutation": lambda: jax.random.permutation(KEY, 4.0),
    "sin": lambda: lax.sin(WHOLE),
    "and": lambda: lax.bitwise_and(WIDE, WIDE),
    "narrow FFT": lambda: jnp.fft.rfft(WIDE.astype(jnp.float16)),
    "grad of ints": lambda: jax.grad(lambda x: (x * 2.0).sum())(WHOLE),
    "jvp": lambda: jax.jvp(jnp.sin, (WIDE,), (NARROW,)),
    "jvp of ints": lambda: jax.jvp(jnp.sin, (WHOLE,), (WHOLE,)),
    "holomorphic": lambda: jax.grad(jnp.sum, holomorphic=True)(WIDE),
    "vjp": lambda: jax.vjp(jnp.sin, WIDE)[1](NARROW),
    "compiled": lambda: jax.jit(skip).lower(NARROW).compile()(WIDE),
    "normal": lambda: jax.random.normal(KEY, (3,), WHOLE.dtype),
    "uniform": lambda: jax.random.uniform(KEY, (3,), WHOLE.dtype),
    "randint": lambda: jax.random.randint(KEY, (3,), 0, 3, WIDE.dtype),
    "bernoulli": lambda: jax.random.bernoulli(KEY, WHOLE),
}


@pytest.mark.parametrize("name", RAISING)
def test_a_message_stands_on_the_page_and_has_a_note(name):
    if name in ("size", "vjp") and JAX < (0, 5):
        pytest.skip("has no note, as the page says")
    error = raised(RAISING[name])
    assert notes(error)
    known = re.findall(r"(?ms)^```text\n(.*?)\n```$", (DOCS / "messages.md").read_text())
    patterns = [re.escape(normal(each)).replace(r"\.\.\.", ".*") for each in known]
    message = normal(str(error))
    assert any(re.fullmatch(each, message) for each in patterns), message


def normal(message: str) -> str:
    """A message without what differs from program to program: places, types, sizes."""
    message = message.replace("float0.Got", "float0. Got")  # before JAX 0.12
    message = re.sub(r"\S+ at \S+:\d+", "FUNCTION at PLACE", message)
    message = re.sub(r"\b(bool|u?int\d+|bfloat16|float\d\w*|complex\d+)\b", "TYPE", message)
    message = re.sub(r"carry (component )?\S+ has", "carry NAME has", message)
    message = re.sub(r"lax\.\w+ requires|jnp\.\w+ is", "FUNCTION", message)
    return " ".join(re.sub(r"\d+", "N", message).split())
