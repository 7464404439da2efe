"""Of every statement with every promotion the lines at fault are named, and no other."""

import generated
import jax
import jax.numpy as jnp
import pytest
from helpers import needs_record, set_x64

from dtypeguard import audit, explain

pytestmark = pytest.mark.third_party

# Each statement and each promotion once; the others with the long tests.
SAMPLE = {
    generated.BODIES[n * len(generated.PROMOTIONS) + n % len(generated.PROMOTIONS)]
    for n in range(len(generated.STATEMENTS))
}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            body,
            id=body.name,
            marks=() if body in SAMPLE else pytest.mark.exhaustive,
        )
        for body in generated.BODIES
    ],
)
@needs_record
def test_the_lines_of_a_generated_step(body, tmp_path):
    path = tmp_path / "step.py"
    path.write_text(body.source)
    lines = body.line("promotion"), body.line("operand")
    with set_x64(body.after == "float64"):
        with explain():
            names = {"__name__": "generated"}
            exec(compile(body.source, str(path), "exec"), names)
        step, x, n = names["step"], jnp.ones(3, body.before), jnp.int32(1)
        for _ in range(2):  # JAX has kept the trace of the second
            (drift,) = audit(step, x, x, n).drifts
            assert (drift.before, drift.after) == (body.before, body.after)
            assert (drift.origin.line, drift.cause and drift.cause.line) == lines
        with pytest.raises(TypeError, match="carry") as raised, explain():
            jax.lax.scan(lambda s, _: (step(s, x, n), None), x, None, 2)
    (row,) = getattr(raised.value, "dtypeguard_rows")  # noqa: B009
    assert [row.origin.line, row.cause.line] == [*lines]
