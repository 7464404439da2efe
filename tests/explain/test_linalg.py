"""What LAPACK has no routine for: a note says what to cast, in releases before JAX 0.11."""

import jax
import jax.numpy as jnp
import pytest
from advice import applied, line, note_on, raised

BF16 = jnp.bfloat16


def solving():
    a, b = jnp.eye(3, dtype=BF16), jnp.ones(3, BF16)
    return jnp.linalg.solve(a, b)  # eager


def inverting():
    def whiten(x):
        cov = x.T @ x + jnp.eye(3, dtype=BF16)
        return jnp.linalg.inv(cov) @ x.T  # jitted

    return jax.jit(whiten)(jnp.ones((5, 3), BF16))


def factoring():
    return jnp.linalg.qr(jnp.ones((3, 3), jnp.float16))  # several


CASES = {
    "eager": (
        solving,
        "jnp.linalg.solve(a, b)",
        "jnp.linalg.solve(a.astype(jnp.float32), b.astype(jnp.float32))"
        ".astype(jnp.bfloat16)",
    ),
    "jitted": (
        inverting,
        "jnp.linalg.inv(cov)",
        "jnp.linalg.inv(cov.astype(jnp.float32)).astype(jnp.bfloat16)",
    ),
    "several": (
        factoring,
        "jnp.linalg.qr(jnp.ones((3, 3), jnp.float16))",
        "jnp.linalg.qr(jnp.ones((3, 3), jnp.float16).astype(jnp.float32))",
    ),
}


@pytest.mark.parametrize("mark", CASES)
def test_a_dtype_without_a_routine(mark):
    program, old, new = CASES[mark]
    error = raised(program)
    assert error is not None
    if not isinstance(error, NotImplementedError):
        pytest.skip("JAX refuses it as an argument")
    note = note_on(program)
    place = line(__file__, mark)
    name = old.partition("(")[0]
    dtype = "float16" if mark == "several" else "bfloat16"
    assert note.startswith(f"dtypeguard: {name} takes no {dtype} on this device.")
    assert f"At {place} write {new} in place of {old}.\n" in note
    assert applied(program, (old, new))() is not None
