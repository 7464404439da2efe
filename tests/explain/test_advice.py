"""What a note says to write is written, each way of it, and runs."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from advice import applied, note_on
from helpers import need, set_x64
from jax import lax

from dtypeguard._source.files import short_path

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
DOUBLE = np.float32(2)


def scanned():
    def body(carry, x):
        return carry * DOUBLE, x

    return lax.scan(body, jnp.ones(3, BF16), None, 2)


def scanned_elsewhere():
    scale = lambda c: c * DOUBLE

    def body(carry, x):
        moved = {"w": scale(carry["w"])}
        return moved, x

    return lax.scan(body, {"w": jnp.ones(3, BF16)}, None, 2)


def looped():
    def body(carry):
        return carry * DOUBLE

    return lax.while_loop(lambda c: c[0] < 8, body, jnp.ones(3, BF16))


def counted():
    def body(i, carry):
        return carry * DOUBLE

    return lax.fori_loop(0, 3, body, jnp.ones(3, BF16))


def flag():
    def body(carry, x):
        return carry + 1, x

    return lax.scan(body, jnp.zeros((), bool), None, 2)


def an_int():
    def body(n, x):
        return n + 0.5, x

    return lax.scan(body, jnp.int32(0), None, 2)


def a_small_int():
    def body(n, x):
        return n + 0.5, x

    return lax.scan(body, jnp.int8(0), None, 2)


def an_index():
    def body(n, x):
        return jnp.arange(9)[n] + 0.5, x

    return lax.scan(body, jnp.int32(0), None, 2)


def a_float():
    def body(z, x):
        return z + 1j, x

    return lax.scan(body, jnp.zeros(3), None, 2)


def a_shape():
    def body(z, x):
        return z + jnp.ones((2, 3)), x

    return lax.scan(body, jnp.zeros(3), None, 2)


def a_stack():
    def body(z, x):
        return jnp.stack([z, z]), x

    return lax.scan(body, jnp.zeros(3), None, 2)


def an_optimizer():
    opt = optax.sgd(0.1, momentum=0.9)
    params, grads = {"w": jnp.ones(3, BF16)}, {"w": jnp.ones(3, F32)}

    def body(state, x):
        return opt.update(grads, state, params)[1], x

    return lax.scan(body, opt.init(params), None, 2)


def branches_that_compute():
    grow = lambda x: x * DOUBLE
    return lax.switch(0, [grow, lambda x: x + x], jnp.ones(3, BF16))


def branches_of_other_kinds():
    x = jnp.ones(())
    return lax.cond(x > 0, lambda x: x * 2, lambda x: jnp.round(x).astype(int), x)


BLENDED = (
    "jax.tree.map(lambda x: x.astype(jnp.bfloat16) if "
    'getattr(x, "dtype", None) == jnp.float32 else x, '
    "optax.incremental_update(params, target, 0.1))"
)


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


def a_floor(x=jnp.ones(3)):  # noqa: B008
    floor = jnp.full(3, 2, jnp.int32)
    return lax.cond(x.sum() > 2, lambda x: x, lambda _: floor, x)


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


def scanned_by_equinox():
    def body(carry, x):
        return carry * DOUBLE, x

    scan = need("equinox.internal").scan
    return scan(body, jnp.ones(3, BF16), None, 2, kind="checkpointed")


def tree_cast(tree, dtype):
    return jax.tree_util.tree_map(lambda x: x.astype(dtype), tree)


BACK = "x.astype(jnp.bfloat16)"
PRODUCT = ("carry * DOUBLE", "(carry * DOUBLE).astype(jnp.bfloat16)")
HERE = f"or at HERE write {PRODUCT[1]} in place of {PRODUCT[0]}."
GUARD = "dtypeguard.guard_step"
# What is said, and the ways of writing it.
ADVICE = {
    scanned: (
        f"Write lax.scan({GUARD}(body), jnp.ones(3, BF16), None, 2), {HERE}",
        [[("(body,", f"({GUARD}(body),")], [PRODUCT]],
    ),
    scanned_elsewhere: (
        f'Write lax.scan({GUARD}(body), {{"w": jnp.ones(3, BF16)}}, None, 2), or '
        "at HERE write (c * DOUBLE).astype(jnp.bfloat16) in place of c * DOUBLE.",
        [
            [("(body,", f"({GUARD}(body),")],
            [("c * DOUBLE", "(c * DOUBLE).astype(jnp.bfloat16)")],
        ],
    ),
    looped: (
        f"Write lax.while_loop(lambda c: c[0] < 8, {GUARD}(body), jnp.ones(3, BF16)), "
        f"{HERE}",
        [[("body, ", f"{GUARD}(body), ")], [PRODUCT]],
    ),
    counted: (
        f"Write lax.fori_loop(0, 3, {GUARD}(body, carry=1), jnp.ones(3, BF16)), {HERE}",
        [[("body, ", f"{GUARD}(body, carry=1), ")], [PRODUCT]],
    ),
    flag: (
        f"Write lax.scan({GUARD}(body), jnp.zeros((), bool), None, 2), or at HERE write "
        "(carry + 1).astype(bool) in place of carry + 1 (all but 0 becomes True).",
        [
            [("(body,", f"({GUARD}(body),")],
            [("carry + 1", "(carry + 1).astype(jnp.bool)")],
        ],
    ),
    an_int: (
        "At HERE start n as float32: write jnp.float32(0) in place of jnp.int32(0) "
        "(integers beyond 2**24 are rounded), or at HERE write jnp.round(n + 0.5)"
        ".astype(jnp.int32) in place of n + 0.5 (the fraction is lost).",
        [
            [("jnp.int32(0)", "jnp.float32(0)")],
            [("n + 0.5", "jnp.round(n + 0.5).astype(jnp.int32)")],
        ],
    ),
    a_small_int: (
        "At HERE start n as float32: write jnp.float32(0) in place of jnp.int8(0), or "
        "at HERE write jnp.round(n + 0.5).astype(jnp.int8) in place of n + 0.5 (the "
        "fraction is lost).",
        [
            [("jnp.int8(0)", "jnp.float32(0)")],
            [("n + 0.5", "jnp.round(n + 0.5).astype(jnp.int8)")],
        ],
    ),
    an_index: (
        "At HERE write jnp.round(jnp.arange(9)[n] + 0.5).astype(jnp.int32) in place of "
        "jnp.arange(9)[n] + 0.5 (the fraction is lost).",
        [
            [
                (
                    "jnp.arange(9)[n] + 0.5",
                    "jnp.round(jnp.arange(9)[n] + 0.5).astype(jnp.int32)",
                )
            ]
        ],
    ),
    a_float: (
        "At HERE start z as complex64: write jnp.zeros(3, dtype=jnp.complex64) in place of "
        "jnp.zeros(3), or at HERE write jnp.real(z + 1j).astype(jnp.float32) in place of "
        "z + 1j (the imaginary part is lost).",
        [
            [("jnp.zeros(3)", "jnp.zeros(3, jnp.complex64)")],
            [("z + 1j", "jnp.real(z + 1j).astype(jnp.float32)")],
        ],
    ),
    a_shape: (
        "Return z as float32[3] (not tried), or start it as float32[2,3].",
        [
            [("z + jnp.ones((2, 3))", "(z + jnp.ones((2, 3)))[0]")],
            [("jnp.zeros(3)", "jnp.zeros((2, 3))")],
        ],
    ),
    a_stack: (
        "Return z as float32[3] (not tried).",
        [[("jnp.stack([z, z])", "jnp.stack([z, z])[0]")]],
    ),
    an_optimizer: (
        "Wrap the optimizer: dtypeguard.guard(opt).",
        [
            [
                (
                    "opt = optax.sgd(0.1, momentum=0.9)",
                    "opt = dtypeguard.guard(optax.sgd(0.1, 0.9))",
                )
            ]
        ],
    ),
    branches_that_compute: (
        "Let branches[0] return (x * DOUBLE).astype(jnp.bfloat16).",
        [[("x * DOUBLE", "(x * DOUBLE).astype(jnp.bfloat16)")]],
    ),
    branches_of_other_kinds: (
        "Let false_fun return jnp.round(x).astype(int).astype(jnp.float32) (integers "
        "beyond 2**24 are rounded).",
        [[("astype(int)", "astype(int).astype(jnp.float32)")]],
    ),
    average_in_a_package: (
        "At HERE begin target['w'] as float32: write jnp.ones(3, jnp.float32) in place of "
        f"jnp.ones(3, BF16), or let true_fun return {BLENDED}.",
        [
            [("jnp.ones(3, BF16)", "jnp.ones(3, jnp.float32)")],
            [("optax.incremental_update(params, target, 0.1)", BLENDED)],
        ],
    ),
    variables_closed_over: (
        "Let true_fun return new.astype(jnp.bfloat16).",
        [[("lambda: new", "lambda: new.astype(jnp.bfloat16)")]],
    ),
    a_constant: (
        "Let false_fun return jnp.asarray(x, jnp.float32) (integers beyond 2**24 are "
        "rounded).",
        [[("jnp.array(0)", "jnp.asarray(jnp.array(0), jnp.float32)")]],
    ),
    a_floor: (
        "Let false_fun return floor.astype(jnp.float32) (integers beyond 2**24 are "
        "rounded).",
        [[("lambda _: floor", "lambda _: floor.astype(jnp.float32)")]],
    ),
    a_first_value: (
        "Let the first value of total be float32: jnp.asarray(x, jnp.float32) "
        "(integers beyond 2**24 are rounded).",
        [
            [
                (
                    "jnp.zeros((), jnp.int32)",
                    "jnp.asarray(jnp.zeros((), jnp.int32), jnp.float32)",
                )
            ]
        ],
    ),
    a_first_value_of_a_loop: (
        "Let the first value of total be float32: jnp.asarray(x, jnp.float32) "
        "(integers beyond 2**24 are rounded).",
        [
            [
                (
                    "jnp.zeros((), jnp.int32)",
                    "jnp.asarray(jnp.zeros((), jnp.int32), jnp.float32)",
                )
            ]
        ],
    ),
    forced_far_away: (
        "Let true_fun return (g / norm).astype(jnp.bfloat16).",
        [[("g / norm", "(g / norm).astype(jnp.bfloat16)")]],
    ),
    forced_by_a_constant: (
        "Let true_fun return (x * scale).astype(jnp.bfloat16).",
        [[("x * scale", "(x * scale).astype(jnp.bfloat16)")]],
    ),
    scanned_by_equinox: (
        f'Write scan({GUARD}(body), jnp.ones(3, BF16), None, 2, kind="checkpointed"), '
        f"{HERE}",
        [[("(body,", f"({GUARD}(body),")], [PRODUCT]],
    ),
}
BRANCHES = [program for program in ADVICE if "fun\n" in inspect.getsource(program)]


def marks(program):
    """The lines of a program that have a mark, as notes write them."""
    lines, first = inspect.getsourcelines(program)
    found = {}
    for number, text in enumerate(lines, first):
        if match := re.search(r"# (\w+)$", text):
            found[match[1]] = f"{short_path(__file__)}:{number}"
    return found


@pytest.mark.parametrize("program", BRANCHES, ids=lambda program: program.__name__)
def test_each_branch_has_its_line_and_what_forced_it(program):
    note, marked = note_on(program), marks(program)
    for branch in ("true_fun", "false_fun"):
        (row,) = re.findall(rf"^.* {branch} +\w+\[.*$", note, flags=re.MULTILINE)
        made, _, forced = row.partition("  forced by ")
        assert marked.get(branch, "") in made
        if branch == "true_fun" and "forced" in marked:
            assert forced == marked["forced"]


@pytest.mark.parametrize("program", ADVICE, ids=lambda program: program.__name__)
def test_what_a_note_says_to_write(program):
    advice, ways = ADVICE[program]
    note = re.sub(rf"{re.escape(short_path(__file__))}:\d+", "HERE", note_on(program))
    lines = note.splitlines()
    assert advice in lines, lines
    is_narrowed = "(jnp.bfloat16)" in advice or "Wrap" in advice
    assert lines[-1].startswith("A cast to bfloat16 rounds: ") is is_narrowed
    assert (
        len(ways)
        == len(re.findall(r"\bor (?:cast|return|start|at HERE write|let)\b", advice)) + 1
    )
    for changes in ways:
        jax.block_until_ready(applied(program, *changes)())


def test_a_cast_to_64_bits_is_not_said_to_round():
    with set_x64(True):
        note = note_on(
            lambda: lax.cond(True, lambda: jnp.ones(3), lambda: jnp.ones(3, F32))
        )
    assert "let true_fun return jnp.ones(3).astype(jnp.float32)" in note
    assert "jnp.ones(3, F32).astype(jnp.float64)" in note
    assert "rounds" not in note
