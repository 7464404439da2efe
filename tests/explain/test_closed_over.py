"""Of what a body or a branch uses from outside, the note names where it was made."""

import functools
import re
import sys
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from advice import applied, line as line_of, note_on, notes, raised
from jax import lax

HALF = jnp.ones(3, jnp.bfloat16)
WIDE = jnp.ones(3)  # global

line = functools.partial(line_of, __file__)
pytestmark = pytest.mark.third_party


def by_default(s, _, scale=jnp.full(3, 2, jnp.float32)):  # noqa: B008  # default
    return s * scale, None


def given(scale, s, _):
    return s * scale, None


def of_parameter(energies, how):
    mean = jnp.mean(energies)

    def body(s, _):
        return s + lax.stop_gradient(energies - mean), None

    def grow(s):
        return s + lax.stop_gradient(energies - mean)

    if how == "cond":
        return lax.cond(True, grow, lambda s: s, HALF)
    if how == "switch":
        return lax.switch(1, [lambda s: s, grow], HALF)
    return lax.scan(body, HALF, None, 2)


def called(how):
    energies = jnp.linspace(0.0, 1.0, 3)  # concrete
    return of_parameter(energies, how)


def assigned(weights):
    wide = weights.astype(jnp.float32)  # partial
    return lax.scan(functools.partial(given, wide), HALF, None, 2)


def nested(state, x):
    total, n = state
    add = lambda i, t: t + x[i]
    return (lax.fori_loop(0, 3, add, total), n + 1), None


def outer_loop():
    first = jnp.zeros((), jnp.bfloat16)
    return lax.scan(nested, (first, 0), jnp.ones((2, 3)))  # scanned


CASES = {
    "default": lambda: lax.scan(by_default, HALF, None, 2),
    "global": lambda: lax.scan(functools.partial(given, WIDE), HALF, None, 2),
    "concrete": lambda: called("cond"),
    "concrete switch": lambda: called("switch"),
    "concrete scan": lambda: called("scan"),
    "partial": lambda: jax.jit(assigned)(HALF),
    "scanned": outer_loop,
}


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "_"))
def test_a_closed_over_value(case):
    (note,) = notes(raised(CASES[case]))
    assert f"  forced by {line(case.partition(' ')[0])}" in note


def test_a_value_of_a_module(tmp_path, monkeypatch):
    file = tmp_path / "its_constants.py"
    file.write_text("import jax.numpy as jnp\n\nSCALE = jnp.ones(3)\n")
    constants = types.ModuleType("its_constants")
    constants.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "its_constants", constants)
    monkeypatch.chdir(tmp_path)
    exec(compile(file.read_text(), str(file), "exec"), vars(constants))
    code = (
        "import its_constants\ndef body(s, _):\n    return s * its_constants.SCALE, None\n"
    )
    (tmp_path / "loop.py").write_text(
        code + "def run(s):\n    return scan(body, s, None, 2)\n"
    )
    names = {"scan": lax.scan, "__name__": "loop"}
    text = (tmp_path / "loop.py").read_text()
    exec(compile(text, str(tmp_path / "loop.py"), "exec"), names)
    (note,) = notes(raised(lambda: names["run"](HALF)))
    assert "  loop.py:3  forced by its_constants.py:3  " in note


def of_scale():
    scale = jnp.float32(2)  # scale

    @jax.jit
    def program(x):
        return lax.cond(x.sum() > 0, lambda: x * scale, lambda: x)

    return program(HALF)


def of_argument():
    @jax.jit
    def program(x, weights):
        doubled = weights * 2  # traced
        return lax.switch(1, [lambda: x, lambda: x * doubled])

    return program(HALF, WIDE)


def in_a_body():
    def body(s, _):
        ones = jnp.ones(3, jnp.float32)  # body
        return lax.cond(s.sum() > 0, lambda: s, lambda: s + ones), None

    return lax.scan(body, HALF, None, 2)


class Model:
    def __init__(self):
        self.weight = jnp.ones(3)

    def __call__(self, x):
        return x * self.weight


def of_object():
    model = Model()  # field
    return lax.cond(True, lambda: model(HALF), lambda: HALF)


BRANCHES = {
    "global": lambda: lax.cond(True, lambda: HALF + WIDE, lambda: HALF),
    "global switch": lambda: lax.switch(1, [lambda: HALF, lambda: HALF * WIDE]),
    "scale": of_scale,
    "traced": of_argument,
    "body": in_a_body,
    "field": of_object,
}


@pytest.mark.parametrize("case", BRANCHES, ids=lambda name: name.replace(" ", "_"))
def test_a_branch_without_operands(case):
    (note,) = notes(raised(BRANCHES[case]))
    (row,) = [text for text in note.splitlines() if " float32[3] " in text]
    assert row.endswith(f"  forced by {line(case.partition(' ')[0])}")


def number(x):
    def stop():
        return x, 0  # the int

    return lax.cond(x.sum() > 9, lambda: (x, 0.5), stop)


def flag(x):
    return lax.cond(
        x.sum() > 9,
        lambda: True,
        lambda: 0,  # the zero
    )


def test_a_python_number_that_a_branch_returns():
    note = note_on(lambda: number(WIDE))
    assert re.search(rf"\n +false_fun  int32\[\] +0, {line('the int')}\n", note)
    assert "\nLet false_fun return 0.0 in place of 0.\n" in note
    assert not notes(raised(lambda: applied(number, ("x, 0 ", "x, 0.0 "))(WIDE)))
    note = note_on(lambda: flag(WIDE))
    assert re.search(rf"\n +false_fun  int32\[\] +0, {line('the zero')}\n", note)
    assert " false_fun return jnp.asarray(0, bool) in place of 0" in note
    mended = applied(flag, ("lambda: 0,", "lambda: jnp.asarray(0, bool),"))
    assert not notes(raised(lambda: mended(WIDE)))


def widths(x):
    return lax.cond(x.sum() > 9, lambda: HALF * 2, lambda: WIDE + 1)


def test_of_two_widths_the_one_that_loses_nothing_comes_first():
    note = note_on(lambda: widths(WIDE))
    assert "Let true_fun return (HALF * 2).astype(jnp.float32), or let false_fun " in note
    assert "return (WIDE + 1).astype(jnp.bfloat16)." in note


def grid():
    moves = jnp.array(
        [[1, 0], [0, 1], [-1, 0], [0, -1]],
        dtype=jnp.float32,  # the table
    )

    def step(position, action):
        ahead = lambda: (position + moves[action]).clip(0, 4)
        return lax.cond(action == 1, ahead, lambda: position)

    return step(jnp.zeros(2, int), jnp.int32(1))


def test_an_int_that_a_table_of_floats_promotes():
    note = note_on(grid)
    write = "write jnp.int32 in place of jnp.float32 (not tried), or let false_fun return "
    assert write + "position.astype(jnp.float32)" in note
    assert not notes(raised(lambda: applied(grid, ("jnp.float32,", "jnp.int32,"))()))


def of_a_target():
    params = {"w": WIDE, "b": WIDE}
    target = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)  # the target

    def update():
        return jax.tree.map(lambda p, t: p * 0.005 + t * (1 - 0.005), params, target)

    return lax.cond(True, update, lambda: target)


def test_an_average_that_one_branch_keeps_begins_in_the_wide_type():
    note = note_on(of_a_target)
    wide, narrow = "p.astype(jnp.float32)", "p.astype(jnp.bfloat16)"
    begin = f"\nAt {line('the target')} begin "
    assert begin in note
    assert (
        f" as float32: write {wide} in place of {narrow}, or let true_fun return " in note
    )
    assert applied(of_a_target, (narrow, wide))()["w"].dtype == jnp.float32


class Holder(NamedTuple):
    step: int
    params: dict


def updated(model):
    return model._replace(params=jax.tree.map(lambda p: p * WIDE, model.params))


def of_a_model():
    model = Holder(0, {"w": HALF, "b": HALF})
    return lax.cond(True, lambda: updated(model), lambda: model)


def test_the_leaves_of_a_model_that_a_branch_returns():
    old = "updated(model)"
    is_wide = 'getattr(x, "dtype", None) == jnp.float32'
    new = f"jax.tree.map(lambda x: x.astype(jnp.bfloat16) if {is_wide} else x, {old})"
    assert f"\nLet true_fun return {new}.\nTried: " in note_on(of_a_model)
    assert applied(of_a_model, (old, new))().params["w"].dtype == jnp.bfloat16
