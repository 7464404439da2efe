"""Errors over operands name the lines that made them, and what is printed mends them."""

import contextlib
import functools
import itertools
import operator
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.support import planted_operands
from tests.support.advice import line, note_on, notes, of_a_package, raised
from tests.support.helpers import IS_RECORDED, set_x64

pytestmark = pytest.mark.third_party

MODES = {"eager": lambda function: function, "jit": jax.jit}
# What is made eagerly in the call itself, in a package or before the context was entered
# has no line of its own.
_INSIDE = {"convolution_of_equinox", "numpy_in_64_bits"}


def marked(word, name):
    """The line with a mark, as notes write it; none without one."""
    mark = f"{word}: {name}"
    text = pathlib.Path(planted_operands.__file__).read_text()
    return [line(planted_operands.__file__, mark)] if f"# {mark}\n" in text else []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", planted_operands.CASES)
def test_the_operand_and_its_lines_are_named(name, mode):
    case = planted_operands.CASES[name]
    with (
        set_x64(case.x64),
        jax.numpy_dtype_promotion("strict" if case.strict else "standard"),
    ):
        note = note_on(lambda: case.program(MODES[mode]))
    rows = note.splitlines()
    start = next(n for n, x in enumerate(rows) if x.startswith(f"  {case.operand}"))
    assert rows[start].endswith(case.type), note
    lines = marked("made", name) if mode == "jit" or name not in _INSIDE else []
    if mode == "jit" and name != "numpy_in_64_bits":
        lines += marked("forced", name) + marked("forced in jit", name)
    named = "\n".join(
        itertools.takewhile(lambda x: x.startswith("    "), rows[start + 1 :])
    )
    if IS_RECORDED:  # before, a note has the lines of equations alone
        assert all(place in named for place in lines), note


BF16, F32 = jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.float32)


def _raised_by_xla(x):
    raise jax.errors.JaxRuntimeError("INTERNAL: float32 and bfloat16")


def _raised_by_the_user(*_):
    raise TypeError(
        "lax.add requires arguments to have the same dtypes, got bfloat16, float32"
    )


OTHERS = {
    "structure": lambda: lax.scan(lambda c, _: ((c, c), None), BF16, None, 3),
    "inside": lambda: lax.scan(lambda c, _: (jnp.dot(c, jnp.ones(4)), 0), BF16, None, 3),
    "shapes": lambda: lax.add(F32, jnp.ones(4)),
    "by the user": _raised_by_the_user,
    "by XLA": lambda: _raised_by_xla(F32),
    "by the body": lambda: lax.scan(_raised_by_the_user, F32, None, 3),
    "string": lambda: jnp.sin("float32"),
    "concrete": lambda: jax.jit(lambda x: int(x[0]))(F32),
}


@pytest.mark.parametrize("call", OTHERS.values(), ids=OTHERS)
def test_errors_about_something_else_pass_untouched(call):
    bare, error = raised(call, contextlib.nullcontext), raised(call)
    assert notes(error) == []
    assert (type(error), str(error)) == (type(bare), str(bare))


def test_what_a_package_refuses_in_a_function_that_jax_calls():
    text = "def check(x):\n    assert x.dtype == int, f'{x.dtype} is no {int}'\n"
    note = note_on(lambda: jax.vmap(of_a_package(text)["check"])(F32))
    assert re.match(r"  F32  float32\[3\]", note.splitlines()[1]), note


def test_a_line_of_a_package_has_the_number_of_a_line_of_the_user():
    def program():
        narrow = jnp.ones(3, jnp.bfloat16)  # narrow
        return package["choose"](narrow, jnp.ones(3))

    number = program.__code__.co_firstlineno + 1
    text = "\n" * (number - 1) + "choose = lambda x, y: lax.select(True, x, y)"
    package = of_a_package(text)
    note = note_on(program)
    if IS_RECORDED:
        assert f"\nAt {line(__file__, 'narrow')} begin on_true as float32." in note, note


def test_a_float_that_is_computed_is_an_int_as_an_index_alone():
    """A weight of an interpolation may be computed of it as well."""

    def interpolated(x):
        place = x / 0.5
        return F32[place] * (place % 1)  # index

    note = note_on(lambda: jax.jit(interpolated)(jnp.ones(3)))
    if IS_RECORDED:
        assert f"\nAt {line(__file__, 'index')} cast place to int32" in note, note


SIZES = {
    "index": lambda size: F32[:size],
    "index.stop": lambda size: F32.at[:size].set(0),
    "shape": lambda size: jnp.zeros(size),
    "shape[0]": lambda size: jnp.reshape(F32, (size, 1)),
    "newshape[0]": lambda size: F32.reshape(size, 1),
    "slice_size": lambda size: lax.dynamic_slice_in_dim(F32, 0, size),
}


@pytest.mark.parametrize("size", [3.0, F32[0] * 3], ids=["number", "array"])
@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_is_a_float(name, size):
    note = note_on(lambda: SIZES[name](size))
    assert f"\n  {name} = size  " in note, note
    assert re.search("make size an int: 3|cast size to int", note), note


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: lax.dynamic_slice_in_dim(x, i, 1),
        lambda x, i: lax.dynamic_update_slice_in_dim(x, x, i, 0),
    ],
)
def test_what_is_sliced_is_no_index(call):
    """Both have the type that the message names; only one of them is at fault."""
    note = note_on(lambda: call(F32, F32[0]))
    assert re.match(r"  start_index", note.splitlines()[1]), note


@pytest.mark.parametrize(("numbers", "name"), [(-1, "n"), ((0, -1), "n"), (-2, "w")])
def test_a_position_from_the_last_argument(numbers, name):
    loss = lambda w, n: jnp.sum(w) * n
    values = {"w": F32, "n": 2} if name == "n" else {"w": jnp.arange(3), "n": 2.0}
    note = note_on(lambda: jax.grad(loss, argnums=numbers)(*values.values()))
    assert re.match(rf"  {name}\b", note.splitlines()[1]), note


def test_without_source():
    code = "lax.dynamic_update_slice(cache, new, (0,))"
    names = {"lax": lax, "cache": BF16, "new": F32}
    note = note_on(lambda: eval(compile(code, "<typed>", "eval"), names))
    assert "cast update to bfloat16" in note


A, B = jnp.ones((2, 3), jnp.bfloat16), jnp.ones((2, 3), jnp.float32)
WHOLE = jnp.ones((2, 3), int)


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (lambda: functools.reduce(operator.add, [A, B]), r"functools\.as"),
        (lambda: divmod(A, B), "self = B"),
        (lambda: functools.partial(lax.dynamic_update_slice, A)(B, (0, 0)), r"\(\(0, 0"),
        (lambda: lax.concatenate((A, WHOLE), 0), "= 0|place of 0"),
        (lambda: lax.associative_scan(lambda x, y: x * y * B[0], A), r"cast operands\[0"),
    ],
)
def test_what_stands_in_a_call_is_not_taken_for_what_it_passes_on(call, wrong):
    with jax.numpy_dtype_promotion("strict"):
        note = note_on(call)
    assert "bfloat16" in note
    assert not re.search(wrong, note), note


HALVES = jnp.array([0.5, 1.5, 2.5])


@pytest.mark.parametrize(
    ("call", "is_cast"),
    [
        (lambda: jnp.gcd(HALVES, jnp.array([4.0])), False),
        (lambda: lax.bitwise_and(HALVES, HALVES), False),
        (lambda: jnp.bincount(F32, weights=HALVES), True),
        (lambda: jax.random.randint(jax.random.key(0), (3.0,), 0.1, 2.5), True),
    ],
)
def test_no_float_that_is_no_index_is_cast_to_an_int(call, is_cast):
    casts = re.findall(" (?:cast|make|begin) .*", note_on(call))
    assert bool(casts) == is_cast
    assert not any("HALVES" in line or "0.1" in line for line in casts)


def test_what_a_function_that_jax_calls_complains_of_is_no_argument_of_the_call():
    def check(x):
        raise TypeError(f"expected float32, got {x.dtype}")

    w = jnp.ones(3)
    loss = lambda w: jax.vmap(check)(jnp.arange(3)).sum() + w.sum()
    assert not notes(raised(lambda: jax.grad(loss)(w)))
