"""The error of a report is that of plain runs, each with its own decisions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtypeguard import audit_precision
from tests.support import helpers
from tests.support.dtypes import BF16, F16, F32
from tests.support.helpers import users_programs
from tests.support.references import cast
from tests.support.trained import written

pytestmark = users_programs


normal = functools.partial(helpers.normal, dtype=BF16)


def off(made, exact):
    """The root mean square over outputs of how far they are off."""
    pairs = zip(jax.tree.leaves(made), jax.tree.leaves(exact))
    return np.sqrt(np.mean(np.square([helpers.off(*pair) for pair in pairs])))


def measured(f, *args):
    """What a user measures: the same function with its arguments in float32."""
    with jax.disable_jit():
        return off(f(*args), f(*cast(args, F32)))


def relu_net(weights, x, y):
    for w in weights[:-1]:
        x = jax.nn.relu(x @ w)
    return jnp.mean((x @ weights[-1] - y) ** 2)


SIZES = [(32, 64), (64, 64), (64, 64), (64, 4)]
WEIGHTS = [normal(n, *size) / size[0] ** 0.5 for n, size in enumerate(SIZES)]


def routed(gates, experts, x):
    """A mixture of experts: each row goes to the best of them."""
    scores, chosen = lax.top_k(x @ gates, 1)
    made = jnp.einsum("bi,bio->bo", x, experts[chosen[:, 0]])
    return jnp.mean((jax.nn.sigmoid(scores) * made) ** 2)


PROGRAMS = {
    "relu": (jax.grad(relu_net), (WEIGHTS, normal(8, 128, 32), normal(9, 128, 4))),
    "top-k": (
        jax.grad(routed, (0, 1)),
        (normal(5, 16, 4), normal(6, 4, 16, 8), normal(7, 4096, 16)),
    ),
    "smooth": (
        jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2)),
        (normal(1, 16, 8), normal(2, 8, 16)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_error_is_what_a_user_measures(name):
    f, args = PROGRAMS[name]
    report = audit_precision(f, *args)
    assert report.error == pytest.approx(measured(f, *args), rel=0.2), report
    assert bool(report.decisions.lines) == (name != "smooth"), report


def test_masks_that_flip_are_a_row_of_their_own():
    f, args = PROGRAMS["relu"]
    report = audit_precision(f, *args)
    assert report.decisions.share > 0.75
    (line,) = report.decisions.lines
    assert line.origin.code == "x = jax.nn.relu(x @ w)"
    assert line.count == 3 * 128 * 64
    assert 0 < line.flipped < line.count / 100
    assert f"{line.count:,}" in str(report)


def test_a_loop_that_turns_another_number_of_times():
    f = lambda x: lax.while_loop(lambda x: jnp.all(x < 3), lambda x: x + 0.02, x)
    x = jnp.zeros(3, BF16)
    report = audit_precision(f, x)
    assert report.decisions.lines
    assert report.error == pytest.approx(measured(f, x), rel=0.01)


def network(params, x, dtype=BF16):
    for layer in params:
        mean = jnp.mean(x, -1, keepdims=True)
        spread = jnp.mean((x - mean) ** 2, -1, keepdims=True)
        h = (x - mean).astype(dtype) / jnp.sqrt(spread + 1e-5).astype(dtype)  # here
        x = x + jnp.tanh(h @ layer["up"]) @ layer["down"]
    return jnp.mean(x.astype(F32) ** 2)


LAYERS = [
    {"up": normal(3 * n + 1, 16, 32) / 4, "down": normal(3 * n + 2, 32, 16) / 6}
    for n in range(2)
]


def test_what_is_left_is_what_the_edited_program_leaves():
    gradient, x = jax.grad(network), 4 + normal(99, 32, 16)
    report = audit_precision(gradient, LAYERS, x)
    (loss,) = (each for each in report.losses if "# here" in each.origin.code)
    with jax.disable_jit():
        exact = gradient(cast(LAYERS, F32), cast(x, F32), F32)
        written, kept = (off(gradient(LAYERS, x, d), exact) for d in (BF16, F32))
    assert report.error == pytest.approx(written, rel=0.05)
    assert loss.left == pytest.approx((kept / written) ** 2, abs=0.05)


def small_loss(scale, params, x):
    h = x
    for w in params[:-1]:
        h = jnp.tanh(h @ w)
    off = (h @ params[-1]).astype(F32) - 1
    return jnp.mean(off**2) * 1e-4 * scale


def large_loss(scale, params, x):
    h = 300 * x
    for w in params:
        h = jnp.tanh(h @ w)
    return jnp.sum((h * h * 3000).astype(F32)) * scale


@pytest.mark.parametrize("loss", [small_loss, large_loss])
def test_gradients_outside_of_float16_want_a_loss_scale_that_was_tried(loss):
    """What is printed is what the edited program gives, which no line in float32 does."""
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    params = [jax.random.normal(key, (32, 32), F16) / 6 for key in keys[1:]]
    x = jax.random.normal(keys[0], (128, 32), F16)
    gradient = functools.partial(jax.grad(loss, argnums=1), 1.0)
    report = audit_precision(gradient, params, x)
    assert not report.fix
    scale = report.scaling.scale
    assert (scale > 1) == (loss is small_loss)
    made = cast(jax.grad(loss, argnums=1)(scale, params, x), F32)
    exact = gradient(*cast((params, x), F32))
    assert report.scaling.error == pytest.approx(
        off(jax.tree.map(lambda leaf: leaf / scale, made), exact), rel=0.2
    )
    lost = (np.asarray(gradient(params, x)) == 0) & (np.asarray(exact) != 0)
    assert report.scaling.lost == pytest.approx(np.mean(lost), abs=0.01)
    way = "underflow" if scale > 1 else "overflow"
    assert f"since gradients {way} float16" in report.headline
    assert "Multiply the loss by" in str(report)


# Ints and bools that floats decide are counted: how many differ from wide ones.

X, W = normal(0, 512, 32), normal(1, 32, 64) / 5


def scores(w, x):
    h = x + 20
    return jnp.sin(h) @ w


OUTPUTS = {
    "argmax": lambda w, x: jnp.argmax(scores(w, x), -1),
    "bools": lambda w, x: scores(w, x) > 0,
    "a dict": lambda w, x: {
        "token": jnp.argmax(scores(w, x), -1),
        "key": jax.random.key(0),
    },
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_share_that_differs(name):
    f = OUTPUTS[name]
    report = audit_precision(f, W, X)
    with jax.disable_jit():
        pairs = f(W, X), f(W.astype(F32), X.astype(F32))
    made, exact = (np.asarray(jax.tree.leaves(x)[-1]) for x in pairs)
    share = np.mean(made != exact)
    assert 0 < share < 0.5
    assert report.error == pytest.approx(share, rel=0.05)
    assert report.headline.endswith("% of the elements of the outputs differ.")
    assert report.losses[0].origin.code == "h = x + 20"
    assert report.fix == report.losses[:1]
    assert report.fixed.error == 0
    assert sum(loss.share for loss in report.losses) == pytest.approx(1, abs=0.05)
    (line, *_) = report.decisions.lines
    assert line.flipped == pytest.approx(share * line.count, rel=0.1) or name != "argmax"


def test_within_a_tolerance():
    report = audit_precision(OUTPUTS["argmax"], W, X, tolerance=0.1)
    assert report.headline.endswith("differ.")
    assert "That is within your 10%." in str(report)


def test_integers_of_integers_are_none():
    with pytest.raises(TypeError, match="and nothing that floats decide"):
        audit_precision(lambda x: x + 1, jnp.arange(3))


def test_of_many_lines_of_the_same_part_none_helps(tmp_path):
    lines = "    x = x * 1.01\n" * 110
    report = audit_precision(
        written(tmp_path, text=f"def model(x):\n{lines}    return x\n").model, normal(0, 8)
    )
    assert not report.losses
    assert str(report).endswith("% off. No line helps.")
