"""Locks of a transformer's step: what they hold over, and what breaks them where."""

import functools
import inspect
import pathlib
import re
import tomllib

import jax.numpy as jnp
import pytest

from dtypeguard.testing import check_lock
from tests.support import locked_step
from tests.support.helpers import set_x64
from tests.support.locked_step import BF16, F32
from tests.support.locks import (
    LockError,
    body,
    compared,
    lock_of,
    lock_text,
    traced,
    updated,
)

pytestmark = pytest.mark.third_party
SOURCE = inspect.getsource(locked_step)
TEXT = (pathlib.Path(__file__).parent / "step.lock").read_text()


def check(folder, old="", new="", times=1, text=TEXT):
    """The module with a piece of its source replaced, and its lock."""
    assert not old or SOURCE.count(old) == times, old
    path = folder / "step.lock"
    path.write_text(text)
    return compared(traced(folder, SOURCE.replace(old, new) if old else SOURCE), str(path))


@pytest.mark.parametrize("sizes", [{}, {"layers": 12}, {"batch": 7, "length": 9}])
def test_it_is_the_same_on_every_release_and_for_other_sizes(tmp_path, sizes):
    assert body(lock_text(traced(tmp_path, SOURCE, **sizes).lock)) == body(TEXT)
    assert len(TEXT.splitlines()) < 80
    assert tomllib.loads(TEXT)["train.py"]["rms_norm"]["sums"] == ["float32 (3)"]


def test_it_holds_with_x64_on(tmp_path):
    with set_x64(True):
        assert check(tmp_path).holds


REFACTORS = {
    "a comment": ("def rms_norm(x, scale):", "# A comment.\n\ndef rms_norm(x, scale):"),
    "a split line": (
        '    return jax.nn.gelu(x @ p["up"]) @ p["down"]',
        '    return (\n        jax.nn.gelu(\n            x\n            @ p["up"]\n'
        '        )\n        @ p["down"]\n    )',
    ),
    "two statements": (
        '    return jax.nn.gelu(x @ p["up"]) @ p["down"]',
        '    up = x @ p["up"]\n    h = jax.nn.gelu(up)\n    return h @ p["down"]',
    ),
    "a repeated cast in one": (
        "    return (h * scale).astype(x.dtype)",
        "    scaled = h * scale\n    return scaled.astype(x.dtype)",
    ),
    "a multiplication more": ("    return x + mlp(", "    return x + 0.5 * mlp("),
}


@pytest.mark.parametrize("name", REFACTORS)
def test_it_holds_over_a_refactoring(tmp_path, name):
    found = check(tmp_path, *REFACTORS[name])
    assert found.holds, found.report()


# What is replaced, the piece of the line that is named, and both types.
CHANGES = {
    "a cast left out": ("h = x.astype(F32)", "h = x", "h = x", "float32", "bfloat16"),
    "preferred_element_type left out": (
        "q, k, preferred_element_type=F32)",
        "q, k)",
        'scores = jnp.einsum("bthk,bshk->bhts", q, k)',
        "bfloat16 @ bfloat16 -> float32",
        "bfloat16 @ bfloat16 -> bfloat16",
    ),
    "a softmax's cast moved": (
        "jnp.where(mask, scores, -1e30))",
        "jnp.where(mask, scores, -1e30).astype(BF16))",
        "weights = jax.nn.softmax(",
        "float32",
        "bfloat16 in float32",
    ),
    "moments in bfloat16": (
        "optax.adam(1e-3)",
        "optax.adam(1e-3, mu_dtype=BF16)",
        "updates, opt_state = opt.update(",
        "float32",
        "bfloat16",
    ),
    "a mean in bfloat16": (
        "jnp.mean(h * h, axis=-1, keepdims=True)",
        "jnp.mean(h * h, axis=-1, keepdims=True, dtype=BF16)",
        "variance = jnp.mean(",
        "float32",
        "float32 -> bfloat16 in bfloat16",
    ),
    "a linspace that widens": (
        'x = params["embed"][tokens]',
        'x = params["embed"][tokens]\n    x = x + jnp.linspace(0, 1, x.shape[-1])',
        "x = x + jnp.linspace(",
        "none such",
        "bfloat16, float32 -> float32",
    ),
    "an input widened": (
        "state = params, jax",
        'params["norm"] = jax.ShapeDtypeStruct((32,), BF16)\n    state = params, jax',
        "return (h * scale)",  # the first that takes it; the cast has nothing to do
        "float32",
        "bfloat16",
    ),
    "gradients cast": (
        "    updates, opt_state = opt.update(",
        "    grads = jax.tree.map(lambda g: g.astype(BF16), grads)\n"
        "    updates, opt_state = opt.update(",
        "grads = jax.tree.map(lambda g",
        "none such",
        "float32 -> bfloat16",
    ),
    "a precision": (
        '"bthk,hkd->btd", out, p["o"])',
        '"bthk,hkd->btd", out, p["o"], precision="highest")',
        'return jnp.einsum("bthk,hkd->btd"',
        "bfloat16 @ bfloat16 -> bfloat16",
        "bfloat16 @ bfloat16 -> bfloat16, precision highest",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_names_its_line_and_both_types(tmp_path, name):
    old, new, line, before, after = CHANGES[name]
    found = check(tmp_path, old, new)
    assert not found.holds
    report = found.report("how to accept it")
    source = (tmp_path / "train.py").read_text().splitlines()
    number = next(n for n, x in enumerate(source, 1) if x.strip().startswith(line))
    assert re.search(rf"train\.py:{number}:", report.splitlines()[1]), report
    assert f"locked: {before}" in report, report
    assert re.search(rf"now: ([^\n]*; )?{re.escape(after)}", report), report
    if name == "an input widened":  # one leaf of many
        assert "inputs state[*]['norm']  locked: float32   now: bfloat16" in report
    else:
        assert report.splitlines()[0].endswith(": 1 cause.")
    assert report.endswith("how to accept it")


def test_a_cast_left_out_in_a_caller(tmp_path):
    cast = "compute = jax.tree.map(lambda p: p.astype(BF16), params)"
    report = check(tmp_path, cast, "compute = params").report()
    assert re.search(r"train\.py:\d+: loss_fn\n +compute = params\n", report), report
    assert "casts  locked: float32 -> bfloat16   now: no longer" in report
    assert re.search("and so: forward, .*attention", report)


def test_what_follows_from_one_line_is_told_apart(tmp_path):
    found = check(tmp_path, *CHANGES["a linspace that widens"][:2])
    (so,) = (x for x in found.report().splitlines() if x.startswith("  and so: "))
    followed = [x in so for x in ("attention", "block", "mlp", "forward")]
    assert followed == [True, True, True, False]


def test_a_renamed_function_has_moved(tmp_path):
    found = check(tmp_path, "rms_norm", "root_mean_square", times=4)
    assert not found.holds
    assert "train.py:rms_norm moved to train.py:root_mean_square" in found.report()
    assert "cause" not in found.report()


def scaled(x, y):
    return (x * 2).astype(F32) @ y


def test_check_lock_writes_only_if_it_is_asked_to(tmp_path):
    x, path = jnp.ones((3, 3), BF16), tmp_path / "scaled.lock"
    with pytest.raises(
        AssertionError, match=r"found no .*scaled\.lock.*DTYPEGUARD_UPDATE=1"
    ):
        check_lock(scaled, x, x.astype(F32), path=path)
    assert not path.exists()
    updated(scaled, x, x.astype(F32), path=path)
    check_lock(scaled, x, x.astype(F32), path=path)
    check_lock(scaled, x, path=path, kwargs={"y": x.astype(F32)})
    before = path.read_bytes()
    with pytest.raises(AssertionError, match=r"inputs +y +locked: float32 +now: bfloat16"):
        check_lock(scaled, x, x, path=path)
    assert path.read_bytes() == before
    updated(scaled, x, x, path=path)
    check_lock(scaled, x, x, path=path)
    assert path.read_bytes() != before


def test_the_lock_of_a_partial_is_that_of_its_function():
    x = jnp.ones((3, 3), BF16)
    found = lock_of(functools.partial(scaled, y=x), (x,), {}, None)
    assert found.lock.step.endswith("test_lock.py:scaled")
    nameless = eval(compile("lambda x: x * 2", "", "eval"))
    assert lock_of(nameless, (x,), {}, None).lock.step == ":<lambda>"


def test_weak_types_are_part_of_it(tmp_path):
    path, x = str(tmp_path / "f.lock"), jnp.ones(3, F32)
    f = lambda x, y: x + y
    updated(f, x, jnp.ones(()), path=path)
    with pytest.raises(AssertionError, match=r"locked: float32 +now: weak float32"):
        check_lock(f, x, jnp.asarray(1.0), path=path)


DAMAGED = {
    "version": (lambda text: text.replace("format = 2", "format = 7"), "format 7"),
    "cut off": (lambda text: text[: len(text) // 2], "cannot be used"),
    "cut off at a line": (
        lambda text: text.partition("[outputs]")[0],
        "its last line is missing",
    ),
    "a conflict": (
        lambda text: text.replace("[inputs]", "<<<<<<< HEAD\n[inputs]\n=======\n>>>>>>> b"),
        "in a merge conflict take either side",
    ),
    "another step": (
        lambda text: text.replace("train.py:step", "train.py:other"),
        "is the lock of train.py:other, and this is train.py:step",
    ),
    "no table": (
        lambda text: text.replace("[inputs]", "inputs = 3\n[x]"),
        "cannot be used",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_lock_that_cannot_be_used_is_left_as_it_is(tmp_path, name):
    damage, message = DAMAGED[name]
    # The other step computes otherwise.
    change = CHANGES["a precision"][:2] if name == "another step" else ()
    with pytest.raises(LockError, match=message):
        check(tmp_path, *change, text=damage(TEXT))
    assert (tmp_path / "step.lock").read_text() == damage(TEXT)
