"""Steps made of a statement and a promotion each: which line is at fault is known.

A statement is how the carry `s` meets a wide operand `w`; a promotion is how `w` is made.
`# promotion` and `# operand` mark the lines that an audit has to name.
"""

import textwrap
from typing import NamedTuple

HEAD = """
import jax, jax.numpy as jnp, numpy as np
from jax import lax
F32 = jnp.float32
KEY = jax.random.PRNGKey(0)
"""

# What stands in the module, and what in the step.
PROMOTIONS = {
    "numpy_scalar": ("", "w = np.float32(0.5)  # operand"),
    "jax_scalar": ("", "w = jnp.float32(0.5)  # operand"),
    "asarray": ("", "w = jnp.asarray(0.5, F32)  # operand"),
    "array": ("", "w = jnp.array([1, 2, 3], F32)  # operand"),
    "numpy_array": ("", "w = np.ones(3, np.float32)  # operand"),
    "ones": ("", "w = jnp.ones(3)  # operand"),
    "full": ("", "w = jnp.full((3,), 2, F32)  # operand"),
    "zeros": ("", "w = jnp.zeros((), F32)  # operand"),
    "linspace": ("", "w = jnp.linspace(0, 1, 3)  # operand"),
    "arange": ("", "w = jnp.arange(3, dtype=F32)  # operand"),
    "divided_arange": ("", "w = jnp.arange(3) / 2  # operand"),
    "random": ("", "w = jax.random.uniform(KEY, (3,))  # operand"),
    "row": ("", "w = jnp.eye(3)[0]  # operand"),
    "cast_input": ("", "w = x.astype(F32)  # operand"),
    "chain": ("", "one = x.astype(F32)  # operand\nw = jnp.exp(one) * 2"),
    "divided_count": ("", "w = 1 / (n + 1)  # operand"),
    "mean": ("", "w = jnp.mean(x, dtype=F32)  # operand"),
    "root": ("", "w = jnp.sqrt(jnp.float32(2))  # operand"),
    "global": ("W = np.float32(0.5)  # operand", "w = W"),
    "global_array": ("W = jnp.ones(3)  # operand", "w = W"),
    "schedule": (
        "def schedule(n):\n    part = jnp.minimum(n, 9) / 9  # operand\n    return -part",
        "w = schedule(n)",
    ),
}

STATEMENTS = {
    "product": "s = s * w  # promotion",
    "in_place": "s = s + s\ns -= w  # promotion\ns = s * 2",
    "other_way_round": "s = w + s  # promotion\ns = jnp.tanh(s)\ns = s * 0.5",
    "where": "s = jnp.where(n > 1, s, w)  # promotion",
    "maximum": "s = jnp.maximum(s, w)  # promotion",
    "tree_map": "s = jax.tree_util.tree_map(lambda a: a * w, s)  # promotion",
    "some_lines": "s = (\n    s * 2  # promotion\n    + w\n)",
    "nested": "def mix(a):\n    b = a * a\n    return b / w  # promotion\ns = mix(s)",
    "nested_jit": "@jax.jit\ndef mix(a):\n    return a - w  # promotion\ns = mix(s)",
    "jit_of_two": "s = jax.jit(lambda a, b: a * b)(s, w)  # promotion",
    "scan": "one = lambda c, _: (c, s * w)  # promotion\n"
    "_, rows = lax.scan(one, 0, None, 1)\ns = rows[0]",
    "cond": "one = lambda a: a * w  # promotion\n"
    "s = lax.cond(n > 1, one, lambda a: jnp.ones(3), s)",
    "vmap": "rows = jax.vmap(lambda a: a * w)(s)  # promotion\n"
    "s = rows.reshape(3, -1)[:, 0]",
    "remat": "s = jax.checkpoint(lambda a: jnp.sin(a) * w)(s)  # promotion",
    "weak_beside": "t = jnp.sin(n * 1.0)\nv = t * w\ns = s * v  # promotion",
    "weak_before": "t = n * 0.5\ns = s * t\ns = s * w  # promotion",
    "mask_after": "s = s * w  # promotion\nm = (s > 0).astype(s.dtype)\ns = s * m",
    "count_after": "s = s * w  # promotion\ns = s / jnp.sum(s > 0)",
    "flag_after": "s = s * w  # promotion\ns = s * jnp.isfinite(s).all()",
    "index_after": "s = s - w  # promotion\ni = jnp.argmax(s)\ns = s + i",
    "rounded_after": "s = s - w  # promotion\ni = jnp.round(s).astype(int)\ns = s + i",
    "mask_before": "m = s > 0\ns = s * w  # promotion\ns = s * m",
    "count_before": "c = jnp.sum(s > 0)\ns = s * w  # promotion\ns = s / c",
    "counter": "s = s * w  # promotion\ns = s * n",
    "loop_after": "s = s * w  # promotion\n"
    "s = lax.fori_loop(0, 2, lambda i, c: c + i * jnp.argmax(c), s)",
}


# The dtype of the carry, and that of what promotes it.
LEAVES = (("bfloat16", "float32"), ("float32", "float64"), ("int32", "float32"))
# These promote to float32 by themselves, or to nothing else.
_WITHOUT = {"float32": ("divided_count", "schedule"), "int32": ("remat", "weak_before")}


class Body(NamedTuple):
    """The source of a step, `step(s, x, n)`, and the lines that are at fault."""

    name: str
    source: str
    before: str
    after: str

    def line(self, mark: str) -> int:
        """The line with a mark."""
        lines = enumerate(self.source.splitlines(), 1)
        (found,) = (number for number, line in lines if line.endswith(f"# {mark}"))
        return found


def _body(number: int, statement: str, promotion: str) -> Body:
    outside, inside = PROMOTIONS[promotion]
    lines = [inside, STATEMENTS[statement], "return s"]
    step = "def step(s, x, n):\n" + textwrap.indent("\n".join(lines), "    ")
    jit = "@jax.jit\n" if number % 2 else ""
    before, after = LEAVES[(number + number // len(PROMOTIONS)) % len(LEAVES)]
    if {statement, promotion} & {*_WITHOUT.get(before, ())}:
        before, after = LEAVES[0]
    source = f"{HEAD}\n{outside}\n\n{jit}{step}\n".replace("float32", after)
    return Body(f"{statement}-{promotion}-{before}", source, before, after)


BODIES = [
    _body(number, statement, promotion)
    for number, (statement, promotion) in enumerate(
        (statement, promotion) for statement in STATEMENTS for promotion in PROMOTIONS
    )
]
