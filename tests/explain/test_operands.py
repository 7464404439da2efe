"""Errors over operands name the lines that made them, and what is printed mends them."""

import contextlib
import functools
import itertools
import operator
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import planted_operands
import pytest
from advice import notes, raised
from helpers import set_x64
from jax import lax

import dtypeguard

pytestmark = pytest.mark.third_party

FILE = pathlib.Path(planted_operands.__file__)
TEXT = FILE.read_text()
MODES = {"eager": lambda function: function, "jit": jax.jit}


# What forces them was made before the context was entered; what is made eagerly in the
# call itself, or in a package, has no line of its own.
_BEFORE = {"numpy_in_64_bits"}
_INSIDE = {"cache_of_flax", "convolution_of_equinox", "key_value_cache", *_BEFORE}


@contextlib.contextmanager
def options(case):
    mode = "strict" if case.strict else "standard"
    with set_x64(case.x64), jax.numpy_dtype_promotion(mode):
        yield


def marked(word, name):
    """The line with a mark, as notes write it; None without one."""
    for number, line in enumerate(TEXT.splitlines(), 1):
        if line.endswith(f"# {word}: {name}"):
            return f"{FILE.relative_to(pathlib.Path.cwd())}:{number}"
    return None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", planted_operands.CASES)
def test_the_operand_and_its_lines_are_named(name, mode):
    case = planted_operands.CASES[name]
    with options(case):
        (note,) = notes(raised(lambda: case.program(MODES[mode])))
    made = marked("made", name)
    forced = marked("forced", name) or marked(f"forced in {mode}", name)
    if mode == "eager" or name in _BEFORE:
        forced = None
    _, *rows = note.splitlines()
    start = next(n for n, x in enumerate(rows) if x.startswith(f"  {case.operand}"))
    assert rows[start].endswith(case.type), note
    if sys.version_info < (3, 12):
        return  # nothing is recorded, and a note has the lines of equations alone
    facts = itertools.takewhile(lambda x: x.startswith("    "), rows[start + 1 :])
    named = "\n".join(facts)
    is_made = mode == "jit" or name not in _INSIDE
    assert all(line in named for line in (made if is_made else None, forced) if line), note


BF16, F32 = jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.float32)
SCALE = np.float32(2)


def _raised_by_the_user():
    raise TypeError(
        "lax.add requires arguments to have the same dtypes, got bfloat16, float32"
    )


def _no_types(carry):
    raise TypeError("the float32 and bfloat16 in this message are the body's own")


OTHERS = {
    "structure": lambda: lax.scan(lambda c, _: ((c, c), None), BF16, None, 3),
    "no pair": lambda: lax.scan(lambda c, _: c, BF16, None, 3),
    "inside": lambda: lax.scan(lambda c, _: (jnp.dot(c, jnp.ones(4)), 0), BF16, None, 3),
    "no types": lambda: lax.while_loop(lambda c: True, _no_types, BF16),
    "no scalar": lambda: lax.while_loop(lambda c: c > 0, lambda c: c * SCALE, BF16),
    "shapes": lambda: lax.add(F32, jnp.ones(4)),
    "by the user": _raised_by_the_user,
    "by the body": lambda: lax.scan(lambda c, _: (_raised_by_the_user(), 0), F32, None, 3),
    "string": lambda: jnp.sin("float32"),
    "concrete": lambda: jax.jit(lambda x: int(x[0]))(F32),
    "missing": lambda: lax.add(F32),
}


@pytest.mark.parametrize("call", OTHERS.values(), ids=OTHERS)
def test_errors_about_something_else_pass_untouched(call):
    bare, error = raised(call, contextlib.nullcontext), raised(call)
    assert notes(error) == []
    assert (type(error), str(error)) == (type(bare), str(bare))


def test_what_a_package_refuses_in_a_function_that_jax_calls():
    text = "def check(x):\n    assert x.dtype == int, f'{x.dtype} is no {int}'\n"
    file = pathlib.Path(pytest.__file__).with_name("check.py")  # as one of a package
    exec(compile(text, str(file), "exec"), names := {})
    (note,) = notes(raised(lambda: jax.vmap(names["check"])(F32)))
    assert re.match(r"  F32  float32\[3\]", note.splitlines()[1]), note


SIZES = {
    "x[:size]": "index = size",
    "x.at[:size].set(0)": "index.stop = size",
    "jnp.zeros(size)": "shape = size",
    "jnp.reshape(x, (size, 2))": "shape[0] = size",
    "x.reshape(size, 2)": "args[0] = size",
    "lax.dynamic_slice_in_dim(x, 0, size)": "slice_size = size",
}


@pytest.mark.parametrize("size", [2.0, F32[0] * 2], ids=["number", "array"])
@pytest.mark.parametrize("call", SIZES)
def test_a_size_that_is_a_float(call, size, tmp_path):
    path = tmp_path / "sized.py"
    text = "import jax\nimport jax.numpy as jnp\nfrom jax import lax\n\n"
    path.write_text(
        f"{text}def sized(size):\n    x = jnp.ones((2, 2))\n    return {call}\n"
    )
    exec(compile(path.read_text(), str(path), "exec"), names := {})
    (note,) = notes(raised(lambda: names["sized"](size)))
    assert f"\n  {SIZES[call]}  " in note, note
    cast = "make size an int: 2." if size == 2.0 and type(size) is float else "cast size to"
    assert cast in note


def test_what_is_sliced_is_no_index():
    """Both have the type that the message names; only one of them is at fault."""
    x, i = jnp.ones((4, 4)), F32[0]
    for call in (
        lambda: lax.dynamic_slice_in_dim(x, i, 1),
        lambda: lax.dynamic_update_slice_in_dim(x, x, i, 0),
    ):
        (note,) = notes(raised(call))
        assert re.match(r"  start_index", note.splitlines()[1]), note


@pytest.mark.parametrize(("numbers", "name"), [(-1, "n"), ((0, -1), "n"), (-2, "w")])
def test_a_position_from_the_last_argument(numbers, name):
    loss = lambda w, n: jnp.sum(w) * n
    values = {"w": F32, "n": 2} if name == "n" else {"w": jnp.arange(3), "n": 2.0}
    error = raised(lambda: jax.grad(loss, argnums=numbers)(*values.values()))
    (note,) = notes(error)
    assert re.match(rf"  {name}\b", note.splitlines()[1]), note


def test_an_error_of_another_kind_is_not_looked_at(monkeypatch):
    monkeypatch.setattr("dtypeguard._explain.finding.sites", lambda _: pytest.fail("read"))
    with dtypeguard.explain():
        lax.add(BF16, BF16)
    assert notes(raised(OTHERS["shapes"])) == []


def test_without_source():
    code = "lax.dynamic_update_slice(cache, new, (0,))"
    names = {"lax": lax, "cache": BF16, "new": F32}
    (note,) = notes(raised(lambda: eval(compile(code, "<typed>", "eval"), names)))
    assert "cast update to bfloat16" in note
    assert "A cast to bfloat16 rounds" in note


A, B = jnp.ones((2, 3), jnp.bfloat16), jnp.ones((2, 3), jnp.float32)
I = jnp.ones((2, 3), jnp.int32)  # noqa: E741


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (lambda: operator.add(A, B), r"operator\.as"),
        (lambda: functools.reduce(operator.add, [A, B]), r"functools\.as"),
        (lambda: divmod(A, B), "self = B"),
        (lambda: functools.partial(lax.dynamic_update_slice, A)(B, (0, 0)), r"\(\(0, 0"),
        (lambda: lax.concatenate((A, I), 0), "= 0|place of 0"),
    ],
)
def test_what_stands_in_a_call_is_not_taken_for_what_it_passes_on(call, wrong):
    with jax.numpy_dtype_promotion("strict"):
        (note,) = notes(raised(call))
    assert "bfloat16" in note
    assert not re.search(wrong, note), note


HALVES = jnp.array([0.5, 1.5, 2.5])
OF_FLOATS = {
    "divided": lambda: jnp.gcd(HALVES, jnp.array([4.0])),
    "combined": lambda: lax.bitwise_and(HALVES, HALVES),
    "shifted": lambda: lax.shift_left(HALVES, jnp.array([1.0])),
    "counted": lambda: jnp.bincount(F32, weights=HALVES),
    "drawn": lambda: jax.random.randint(jax.random.key(0), (3.0,), 0.1, 2.5),
}


@pytest.mark.parametrize("name", OF_FLOATS)
def test_no_float_that_is_no_index_is_cast_to_an_int(name):
    (note,) = notes(raised(OF_FLOATS[name]))
    casts = [x for x in note.splitlines() if re.search(" (cast|make|begin) ", x)]
    assert not any("HALVES" in line or "0.1" in line for line in casts), note
    assert bool(casts) == (name in ("counted", "drawn")), note
