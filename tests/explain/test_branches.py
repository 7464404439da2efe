"""Notes on the branches of a cond: each line, and advice that works to the letter."""

import inspect
import pathlib
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax

from dtypeguard import explain
from dtypeguard._leaves.compat import set_x64
from dtypeguard._leaves.files import short_path

pytestmark = pytest.mark.third_party
BF16 = jnp.bfloat16


def average_in_a_package():
    def train(params, target):
        blend = lambda: optax.incremental_update(params, target, 0.1)  # true_fun
        return lax.cond(params["w"].sum() > 0, blend, lambda: target)

    return jax.jit(train)({"w": jnp.ones(3)}, {"w": jnp.ones(3, BF16)})


def variables_closed_over():
    def train(old, x):
        new = old * 0.9 + x * jnp.float32(0.1)  # true_fun
        return lax.cond(x.sum() > 0, lambda: new, lambda: old)

    return jax.jit(train)(jnp.ones(3, BF16), jnp.ones(3))


def a_constant():
    def train(x):
        loss = jnp.sum(x)  # true_fun
        nothing = lambda: jnp.array(0)  # false_fun
        return lax.cond(loss > 0, lambda: loss, nothing)

    return jax.jit(train)(jnp.ones(3))


def a_first_value():
    def train(total, x):
        return lax.cond(x.sum() > 0, lambda t: t + 0.5, lambda t: t, total)  # true_fun

    start = jnp.zeros((), jnp.int32)
    return jax.jit(train)(start, jnp.ones(3))


def a_first_value_of_a_loop():
    def body(carry, x):
        total = carry["total"]
        move = lambda t: t + x  # true_fun
        return {"total": lax.cond(x > 0, move, lambda t: t, total)}, None

    start = {"total": jnp.zeros((), jnp.int32)}  # false_fun
    return lax.scan(body, start, jnp.ones(3))


def forced_far_away():
    def train(grads):
        norm = jnp.sqrt(jnp.sum(grads.astype(jnp.float32) ** 2))  # forced
        scaled = lambda g: g / norm  # true_fun
        return lax.cond(norm > 1, scaled, lambda g: 2 * g, grads)

    return jax.jit(train)(jnp.ones(3, BF16))


def forced_by_a_constant():
    def train(x):
        scale = jnp.ones((), jnp.float32)  # forced
        grow = lambda x: x * scale  # true_fun
        return lax.cond(x.sum() > 0, grow, lambda x: x, x)

    return jax.jit(train)(jnp.ones(3, BF16))


# What is printed at the end, and what it makes of the program.
CASES = {
    average_in_a_package: (
        "Let true_fun return x.astype(jnp.bfloat16).",
        ("optax.incremental_update(params, target, 0.1)", "tree_cast(XX, BF16)"),
    ),
    variables_closed_over: (
        "Let true_fun return x.astype(jnp.bfloat16).",
        ("lambda: new", "lambda: new.astype(jnp.bfloat16)"),
    ),
    a_constant: (
        "Let false_fun return jnp.asarray(x, jnp.float32) (integers beyond 2**24 are "
        "rounded).",
        ("jnp.array(0)", "jnp.asarray(jnp.array(0), jnp.float32)"),
    ),
    a_first_value: (
        "Let the first value of total be float32: jnp.asarray(x, jnp.float32) "
        "(integers beyond 2**24 are rounded).",
        ("jnp.zeros((), jnp.int32)", "jnp.asarray(jnp.zeros((), jnp.int32), jnp.float32)"),
    ),
    a_first_value_of_a_loop: (
        "Let the first value of total be float32: jnp.asarray(x, jnp.float32) "
        "(integers beyond 2**24 are rounded).",
        ("jnp.zeros((), jnp.int32)", "jnp.asarray(jnp.zeros((), jnp.int32), jnp.float32)"),
    ),
    forced_far_away: (
        "Let true_fun return x.astype(jnp.bfloat16).",
        ("g / norm", "(g / norm).astype(jnp.bfloat16)"),
    ),
    forced_by_a_constant: (
        "Let true_fun return x.astype(jnp.bfloat16).",
        ("x * scale", "(x * scale).astype(jnp.bfloat16)"),
    ),
}


def tree_cast(tree, dtype):
    return jax.tree_util.tree_map(lambda x: x.astype(dtype), tree)


def note_of(program):
    message = r"cond branches|true_fun and false_fun"
    with pytest.raises(TypeError, match=message) as raised, explain():
        program()
    (note,) = [n for n in raised.value.__notes__ if n.startswith("dtypeguard: ")]
    return note


def marks(program):
    """The lines of a program that have a mark, as notes write them."""
    lines, first = inspect.getsourcelines(program)
    file = short_path(str(pathlib.Path(__file__)))
    found = {}
    for number, text in enumerate(lines, first):
        if match := re.search(r"# (\w+)$", text):
            found[match[1]] = f"{file}:{number}"
    return found


@pytest.mark.parametrize("program", CASES, ids=lambda program: program.__name__)
def test_each_branch_has_its_line_and_what_forced_it(program):
    note, marked = note_of(program), marks(program)
    for branch in ("true_fun", "false_fun"):
        (row,) = re.findall(rf"^.* {branch} +\w+\[.*$", note, flags=re.MULTILINE)
        made, _, forced = row.partition("  forced by ")
        assert marked.get(branch, "") in made
        if branch == "true_fun" and "forced" in marked:
            assert forced == marked["forced"]


@pytest.mark.parametrize("program", CASES, ids=lambda program: program.__name__)
def test_what_to_write_helps(program):
    advice, (old, new) = CASES[program]
    rounds = "astype(jnp.bfloat16)" in advice
    *_, said, last = [*note_of(program).splitlines(), *[""] * (not rounds)]
    assert said == advice
    assert last.startswith("A cast to bfloat16 rounds: ") is rounds
    source = inspect.getsource(program)
    assert source.count(old) == 1
    mended = source.replace(old, new.replace("XX", old))
    exec(compile(mended, "<mended>", "exec"), names := dict(globals()))
    names[program.__name__]()


def test_a_cast_to_64_bits_is_not_said_to_round():
    with set_x64(True), pytest.raises(TypeError, match="cond") as raised, explain():
        lax.cond(True, lambda: jnp.ones(3), lambda: jnp.ones(3, jnp.float32))
    (note,) = raised.value.__notes__[-1:]
    assert "x.astype(jnp.float64)" in note
    assert "rounds" not in note
