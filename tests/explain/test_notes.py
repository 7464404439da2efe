"""The table of notes: of each program the lines that are named, and the kind of remedy.

In a program `# first` is on the line that the note names first, `# named` on others that it
has to name, and `# not` on those that it may not. Its row has the kind of the first remedy.
If `fixed`, a program does what that remedy says, and runs.
"""

import argparse
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.experimental import ode

import dtypeguard
from tests.support.advice import note_on, of_a_package, short_path
from tests.support.dtypes import BF16, F32, I32
from tests.support.helpers import IS_RECORDED, need

pytestmark = pytest.mark.third_party  # standard promotion
HALF, WIDE = jnp.ones(3, BF16), jnp.ones(3)
SCALE = np.float32(2)
XS = jnp.ones((4, 3))

_BEGIN = r"^(At \S+ b|B)egin \S.* as \w+"
KINDS = {
    "wrap": r"^Wrap the optimizer: dtypeguard\.guard\(opt\)",
    "begin": _BEGIN,  # which dtypeguard has tried
    "begin untried": _BEGIN,
    "cast": r"^(At \S+ c|C)ast \S.* back to \w+: \.astype",
    "keep": r"^At \S+ keep \S+ in \w+: a cast back restores no digits",
    "return": r"^(At \S+ l|L)et \S+ .*return \S",
    "argument": r"^At \S+ (cast|make|give) \S",
    "own arrays": "^Before the first call give each leaf an array of its own",
    "key": r"^At \S+ make \S+ a key: jax\.random\.wrap_key_data",
    "leave out": r"^At \S+ leave \S+ out of what is differentiated",
    "": "^  ",
}
CHECKED = "Checked: with this change the types agree."
ROWS: dict[str, tuple[Callable, str]] = {}


def noted(kind):
    """Registers a program with the kind of its remedy, which it takes if `fixed`."""

    def register(program):
        ROWS[program.__name__] = program, kind
        return program

    return register


def marked(program, mark):
    """The lines of a program with a mark, as notes write them."""
    lines, start = inspect.getsourcelines(program)
    file = short_path(inspect.getsourcefile(program))
    return [f"{file}:{start + n}" for n, x in enumerate(lines) if x.endswith(f"# {mark}\n")]


# A carry that comes back wider begins so --------------------------------------------------


@noted("begin")
def a_number_in_the_call_of_a_loop(fixed):
    body = lambda i, carry: (carry[0] - carry[1][i], carry[1])
    return lax.fori_loop(0, 4, body, (jnp.zeros(3) if fixed else 0, XS))  # first


@noted("begin")
def a_number_that_the_call_of_a_loop_does_not_hold(fixed):
    state = {"x": XS}
    state["n"] = jnp.full(3, 5.0) if fixed else 5  # first
    state["n"] = state["n"]
    body = lambda i, carry: {"n": carry["n"] - carry["x"][i], "x": carry["x"]}  # named
    return lax.fori_loop(0, 4, body, state)  # not


@noted("cast")
def a_number_under_a_key(fixed):
    seen = 0  # not
    found = 0  # named

    def step(carry, x):
        is_found = x.any()  # first
        count = is_found.astype(int) if fixed else is_found
        return {"seen": carry["seen"] + 1, "found": count}, None

    return lax.scan(step, {"seen": seen, "found": found}, XS)


@noted("begin")
def an_average_with_a_computed_decay(fixed):
    def body(carry, x):
        average, n = carry
        decay = jnp.minimum(0.999, (1 + n) / (10 + n))
        return (decay * average + (1 - decay) * x, n + 1), None  # named

    first = jnp.zeros(3, F32 if fixed else BF16), F32(0)  # first
    return lax.scan(body, first, XS)


@noted("begin")
def an_average_of_an_average_that_becomes_wide(fixed):
    def step(carry, x):
        params, fast, slow, slower = carry
        averages = (fast + params, slow + fast, slower + slow)  # named
        return (params, *averages), None

    dtype = F32 if fixed else BF16
    averages = jnp.ones(3, dtype), jnp.zeros(3, dtype), jnp.zeros(3, dtype)  # named
    return lax.scan(step, (WIDE, *averages), None, 3)


@noted("begin")
def an_average_that_makes_others_wide(fixed):
    def step(carry, x):
        params, average = carry
        params = params - 0.01 * (params - average)  # not
        return (params, SCALE * average + params), None  # named

    dtype = F32 if fixed else BF16
    params = jnp.ones(3, dtype)
    average = jnp.ones(3, dtype)  # named
    return lax.scan(step, (params, average), None, 3)


@noted("begin")
def an_average_that_begins_as_the_params(fixed):
    params, rate = {"w": jnp.ones(3, BF16)}, F32(0.99)  # first

    def step(carry, x):
        params, average = carry
        mix = lambda a, p: rate * a + (1 - rate) * p  # named
        return (params, jax.tree.map(mix, average, params)), None

    start = jax.tree.map(F32, params) if fixed else params
    return lax.scan(step, (params, start), jnp.ones(2, BF16))


@noted("begin")
def one_argument_of_a_call_over_several_lines(fixed):
    def body(carry, x):
        return {name: leaf + x for name, leaf in carry.items()}, None

    make = dict
    first = make(
        wide=jnp.ones(3),
        narrow=jnp.ones(3, F32 if fixed else BF16),  # named
    )
    return lax.scan(body, first, XS)


@noted("begin")
def a_part_of_what_was_made_before(fixed):
    def run(x):
        narrow = x.astype(F32 if fixed else BF16) * 2  # named
        return lax.scan(lambda c, x: (c * x, None), narrow[0], WIDE)

    return jax.jit(run)(WIDE)


@noted("begin")
def a_part_of_a_mask(fixed):
    def run(x):
        done = x > 0  # not
        start = done[0] * 1.0 if fixed else done[0]  # named
        return lax.scan(lambda c, x: (c * 0.5 + x, None), start, x)  # first

    return jax.jit(run)(WIDE)


@noted("begin")
def zeros_like_what_was_made_real(fixed):
    def solve(b):
        start = jnp.zeros_like(b)  # first
        return lax.scan(lambda c, _: (c + 1j * WIDE, None), start, None, 2)

    b = jnp.ones(3, complex if fixed else F32)  # named
    return jax.jit(solve)(b)


@noted("begin")
def a_loop_of_equinox(fixed):
    eqxi = need("equinox.internal")

    def body(x):
        return x * SCALE  # named

    start = jnp.ones((), F32 if fixed else BF16)
    return eqxi.while_loop(lambda x: x < 3, body, start, max_steps=3, kind="lax")


@noted("begin")
def what_a_partial_holds(fixed):
    def given(scale, s, _):
        return s * scale, None

    def assigned(weights):
        wide = weights.astype(F32)  # named
        return lax.scan(functools.partial(given, wide), weights, None, 2)

    return jax.jit(assigned)(WIDE if fixed else HALF)


@noted("begin")
def a_cast_before_the_gradient(fixed):
    def loss_of(p, x):
        return jnp.sum((x * p["w"]) ** 2)

    def body(params, x):
        wide = jax.tree.map(lambda a: a.astype(F32), params)  # named
        grads = jax.grad(loss_of)(wide, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), None

    params = {"w": jnp.ones(3)}
    params = jax.tree.map(lambda p: p.astype(BF16), params)  # named
    if fixed:
        params = jax.tree.map(lambda p: p.astype(F32), params)
    return lax.scan(body, params, jnp.ones((2, 3), BF16))


# ... what comes back narrower is cast at the line that narrowed it ------------------------


@noted("begin")
def a_leaf_in_the_place_of_another(fixed):
    first = jnp.ones(3, F32 if fixed else BF16)  # first
    second = jnp.ones(3)  # named
    return lax.scan(lambda c, x: ((c[1], c[1]), x), (first, second), XS)


@noted("keep")
def a_fori_loop_that_narrows(fixed):
    def body(i, c):
        return c if fixed else c.astype(BF16)  # first

    return lax.fori_loop(0, 3, body, jnp.ones(3))


@noted("cast")
def a_float_that_is_made_an_int(fixed):
    def body(x):
        return (x.astype(int).astype(F32) if fixed else x.astype(int)) + 1  # first

    return lax.while_loop(lambda x: x[0] < 3, body, jnp.ones(3))


@noted("cast")
def a_table_in_64_bits_among_floats_of_32(fixed):
    with jax.enable_x64(True):
        table, start = np.arange(3.0), jnp.ones(3, F32)

        def step(carry, x):
            moved = carry[1] + carry[0] * table  # first
            return (carry[0], moved.astype("float32") if fixed else moved), None

        return lax.scan(step, (start, start * 2), None, 2)


# ... and an optimizer is wrapped ----------------------------------------------------------


@noted("wrap")
def an_optimizer_in_a_scan(fixed):
    opt = dtypeguard.guard(optax.adam(1e-3)) if fixed else optax.adam(1e-3)
    params = {"w": jnp.ones(3, BF16)}
    grads = {"w": jnp.ones(3)}  # named

    def step(state, _):
        return opt.update(grads, state, params)[1], None  # first

    return lax.scan(step, opt.init(params), None, 3)


@noted("wrap")
def an_optimizer_in_a_branch(fixed):
    opt = dtypeguard.guard(optax.adam(1e-3)) if fixed else optax.adam(1e-3)
    params = {"w": jnp.ones(3, BF16)}
    state = opt.init(params)

    def apply():
        updates, new = opt.update({"w": jnp.ones(3)}, state, params)  # first
        return optax.apply_updates(params, updates), new

    return lax.cond(True, apply, lambda: (params, state))


# Branches ---------------------------------------------------------------------------------


@noted("begin untried")
def a_branch_that_widens_what_was_there(fixed):
    x = jnp.ones(3, F32 if fixed else BF16)  # first
    return lax.cond(True, lambda x: x * SCALE, lambda x: x, x)  # named


@noted("key")
def a_raw_key_beside_a_key(fixed):
    key = jax.random.key(0)
    raw = jax.random.key_data(key)  # first
    raw = jax.random.wrap_key_data(raw) if fixed else raw
    return lax.cond(True, lambda: key, lambda: raw)


@noted("return")
def two_widths_of_which_one_loses_nothing(fixed):
    return lax.cond(
        True,
        lambda: (HALF * 2).astype("float32") if fixed else HALF * 2,  # first
        lambda: WIDE + 1,  # named
    )


@noted("keep")
def a_branch_that_rounds_its_result(fixed):
    narrow = lambda x: x if fixed else x.astype(BF16)  # first
    return lax.cond(True, narrow, lambda x: x, WIDE)


@noted("return")
def a_number_that_one_return_of_two_gives(fixed):
    def first(x):
        if x.ndim == 1:
            return jnp.asarray(0.0, "bfloat16") if fixed else 0.0
        return x[0, 0]  # not

    return lax.cond(True, first, lambda x: x[0], HALF)


@noted("return")
def a_global_that_a_branch_returns(fixed):
    return lax.cond(
        True,
        lambda x: x * x,
        lambda x: COUNTS.astype(F32) if fixed else COUNTS,
        (WIDE * 1.0),
    )


COUNTS = np.array([1, 2, 3], np.int32)


@noted("begin")
def a_carry_that_takes_a_number_of_a_branch(fixed):
    def step(carry, x):
        def reset(carry):  # named
            return 0.0

        keep = lambda carry: 0.5
        return lax.cond(x[0] > 0, keep, reset, carry), None  # not

    return lax.scan(step, (WIDE if fixed else HALF)[0], XS)


@noted("return")
def a_number_that_a_jitted_branch_returns(fixed):
    @jax.jit  # first
    def wide(x):
        return x if fixed else 2.0

    return lax.cond(True, wide, lambda x: x, HALF[0])  # not


# Arguments --------------------------------------------------------------------------------


@noted("argument")
def what_is_written_to_a_cache(fixed):
    new = jnp.ones(1) * 2  # first
    return lax.dynamic_update_slice(HALF, new.astype("bfloat16") if fixed else new, (0,))


@noted("begin untried")
def an_index_that_is_a_float(fixed):
    index = I32(F32(3) / 2) if fixed else F32(3) / 2  # first
    return jnp.arange(9)[index]


@noted("begin untried")
def an_index_that_was_made_whole(fixed):
    def pick(x):
        rows = jnp.floor(x / 2).astype(int) if fixed else jnp.floor(x / 2)  # first
        return x[jnp.clip(rows, 0, 2)]

    return jax.jit(pick)(WIDE)


@noted("begin untried")
def an_index_that_a_mapped_function_is_given(fixed):
    teams = jnp.repeat(jnp.arange(2 if fixed else 2.0), 2)  # first
    return jax.vmap(lambda team: WIDE[team])(teams)


@noted("argument")
def a_table_of_numpy_of_which_a_compiled_function_looks_up_parts(fixed):
    ids = np.arange(6, dtype=np.int32 if fixed else float)  # first
    batch = ids.reshape(2, 3)  # named

    def look(rows):
        seen = jax.vmap(lambda row: XS[row])(rows[:, :1])  # not
        return seen, XS[rows[:, 1:] % 3]

    return jax.jit(look)(batch)


@noted("argument")
def an_int_that_is_differentiated(fixed):
    def descended(x):
        return x - 0.1 * jax.grad(lambda x: (x - 2.5) ** 2)(x)

    return descended(0.0 if fixed else 0)  # first


@noted("leave out")
def an_int_among_what_is_differentiated(fixed):
    params = {"count": jnp.arange(3), "w": jnp.ones(3)}  # first
    chosen = {"w": params["w"]} if fixed else params
    return jax.grad(lambda params: params["w"].sum())(chosen)


# JAX keeps what it compiled for 2.0, and finds it again for 2.
@noted("argument")
def an_option_of_the_command_line(fixed):
    parser = argparse.ArgumentParser()
    parser.add_argument("--most-rows", default=(3 if fixed else 2.0))  # first
    options = parser.parse_args([])
    return jnp.repeat(WIDE, options.most_rows, axis=0)


@noted("argument")
def an_option_that_a_later_line_halves(fixed):
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", default=4)  # not
    options = parser.parse_args([])
    options.most = 3 if fixed else options.most / 2  # first
    return jnp.repeat(WIDE, options.most, axis=0)


@noted("argument")
def what_an_associative_scan_combines(fixed):
    scale = jnp.asarray(2, BF16 if fixed else F32)  # first
    combine = lambda x, y: x + y * scale
    return lax.associative_scan(combine, HALF)


@noted("argument")
def an_int_in_jvp(fixed):
    numbers = ((3.0, 5.0), (1.0, 0.0)) if fixed else ((3.0, 5), (1.0, 0))  # first
    return jax.jvp(lambda x, y: x * y, *numbers)


@noted("begin untried")
def a_dtype_that_came_in_with_an_array(fixed):
    start = jnp.zeros(2, F32 if fixed else int)  # first
    return jax.random.normal(jax.random.PRNGKey(0), (3,), start.dtype)


@noted("begin untried")
def a_compiled_function_that_is_given_another_type(fixed):
    step = lambda s: {"n": F32(1) * s["n"]}
    run = jax.jit(step).lower({"n": jnp.ones(3, BF16)}).compile()
    state = {"n": jnp.ones(3, BF16 if fixed else F32)}  # first
    return run(state)


@noted("argument")
def a_compiled_function_of_one_array(fixed):
    run = jax.jit(lambda x: x + 1).lower(HALF).compile()
    x = jnp.ones(3)  # first
    x = x.astype("bfloat16") if fixed else x
    return run(x)


@noted("begin untried")
def a_compiled_function_of_which_two_arguments_differ(fixed):
    step = lambda s, n: {"n": n * s["n"], "m": s["m"]}
    run = jax.jit(step).lower({"n": HALF[:2], "m": WIDE[:2]}, 3).compile()
    state = {"m": WIDE[:2], "n": jnp.ones(2, BF16 if fixed else F32)}  # first
    return run(state, 3 if fixed else 3.5)


@noted("own arrays")
def an_array_that_is_donated_twice(fixed):
    update = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    weights = jnp.ones(3)  # first
    state = {"w": weights, "average": weights}
    state = dtypeguard.strong(state) if fixed else state
    return update(state)


@noted("begin untried")
def an_index_of_numpy_that_is_a_float(fixed):
    best = jnp.floor(1.5).astype(int) if fixed else jnp.floor(1.5)  # first
    return np.array(["a", "b"])[best]


@noted("begin untried")
def a_sum_of_short_ints(fixed):
    x = jnp.ones(3, I32 if fixed else jnp.int4)  # first
    return jnp.sum(x)


@noted("begin untried")
def the_limits_of_a_float_that_is_an_int(fixed):
    x = jnp.arange(3.0 if fixed else 3)  # first
    return jnp.finfo(x.dtype).eps


@noted("leave out")
def a_gradient_of_an_int(fixed):
    g = jax.grad(lambda x, n: x * n, argnums=(0, 1), allow_int=True)(1.0, 2)  # first
    return g[0] if fixed else g[0] + g[1]


@noted("argument")
def a_rule_that_returns_a_wide_cotangent(fixed):
    @jax.custom_vjp
    def double(x):
        return x * 2

    def backward(_, g):
        return ((g * WIDE).astype(BF16) if fixed else g * WIDE,)  # named

    double.defvjp(lambda x: (double(x), None), backward)
    return jax.grad(lambda x: (double(x) * x).sum())(HALF)


@noted("argument")
def a_static_argument_that_is_a_float(fixed):
    times = 2 if fixed else 2.0  # first
    repeat = functools.partial(jnp.repeat, total_repeat_length=6)
    return jax.jit(lambda x, times: repeat(x, times), static_argnums=1)(WIDE, times)


# Packages and what JAX wrote --------------------------------------------------------------


@noted("")
def a_loop_that_jax_wrote(fixed):
    b = jnp.ones(3, F32 if fixed else BF16)
    return jax.scipy.sparse.linalg.cg(lambda v: v * SCALE, b)  # named


@noted("")
def a_loop_inside_of_a_loop_that_jax_wrote(fixed):
    with jax.enable_x64(True):
        times = jnp.linspace(0.0, 1.0, 3, dtype=F32) if fixed else jnp.linspace(0.0, 1.0, 3)
        return ode.odeint(lambda y, t: -y * t, jnp.ones(3, F32), times)  # first


@noted("begin untried")
def a_call_in_a_package_of_what_it_has_made_of_a_tree(fixed):
    package = of_a_package("choose = lambda s: lax.select(True, 1 * s['a'], 1 * s['b'])")
    state = {"a": jnp.ones(3, F32 if fixed else BF16)}  # first
    state["b"] = jnp.ones(3)
    return package["choose"](state)


@noted("begin untried")
def a_call_in_a_function_that_a_package_compiles(fixed):
    package = of_a_package(
        "@jax.jit\ndef put(x, y): return lax.dynamic_update_slice(x, 1 * y, (0,))"
    )
    cache = jnp.ones(3, F32 if fixed else BF16)  # first
    row = jnp.ones(1)  # named
    return package["put"](cache, row)


@noted("begin untried")
def labels_of_optax(fixed):
    labels = jnp.ones(2, int) if fixed else jnp.ones(2)  # first
    return optax.softmax_cross_entropy_with_integer_labels(jnp.ones((2, 3)), labels)


@noted("")
def a_call_in_a_package_that_refuses_what_it_has_made_itself(fixed):
    package = of_a_package("choose = lambda x: x[1 * x]")
    rewards = jnp.arange(3) if fixed else jnp.ones(3)  # not
    return package["choose"](rewards)


@noted("begin untried")
def an_embedding_of_flax(fixed):
    nn = need("flax.linen")
    tokens = jnp.ones(3, int) if fixed else jnp.ones(3)  # first
    return nn.Embed(4, 2).init(jax.random.PRNGKey(0), tokens)


def solve(structure, x=None):
    """Checks dtypes as another library does, which may have made one of both itself."""
    x = jnp.ones(3) if x is None else x
    if structure.dtype != x.dtype:
        raise ValueError(f"structures: {structure.dtype}, and not {x.dtype}")


@noted("begin untried")
def a_check_of_another_library(fixed):
    operator = jnp.eye(3, dtype=(F32 if fixed else BF16))  # first
    b = jnp.ones(3)  # named
    return solve(operator, b)


@noted("begin untried")
def a_check_of_what_another_library_makes_itself(fixed):
    operator = jnp.eye(3, dtype=(F32 if fixed else BF16))  # first
    return solve(operator)


@noted("argument")
def a_number_of_which_python_has_no_such_type(fixed):
    half = jnp.ones(3, BF16)  # named
    return lax.pad(half, jnp.asarray(0, "bfloat16") if fixed else 0, [(1, 1, 0)])  # first


@noted("return")
def a_branch_that_a_package_is_given(fixed):
    nn = need("flax.linen")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            def wide(module, x):
                return x if fixed else x * SCALE  # first

            return nn.cond(x.sum() > 0, wide, lambda module, x: x.astype(BF16), self, x)

    return Model().init(jax.random.key(0), HALF)


@noted("")
def a_kind_that_an_assertion_expects(fixed):
    def check(x, kind):
        assert x.dtype == kind, f"input has type {x.dtype} but expected {kind}"

    rewards = jnp.arange(3)  # first
    return check(rewards, I32 if fixed else float)


@pytest.mark.parametrize("name", ROWS)
def test_the_lines_and_the_remedy_of_a_note(name):
    program, kind = ROWS[name]
    note = note_on(functools.partial(program, False))
    if not IS_RECORDED:
        return  # nothing is recorded, and a note has the lines of equations alone
    _, *rows = note.splitlines()
    facts = [*itertools.takewhile(lambda x: x.startswith("  "), rows)]
    remedies = rows[len(facts) :]
    lines = re.findall(r"[\w/.]+\.py:\d+", "\n".join(facts))
    assert lines[:1] == (marked(program, "first")[:1] or lines[:1]), note
    assert {*marked(program, "named")} <= {*lines}, note
    lines += re.findall(r"^At (\S+)", (remedies or facts)[0])
    assert not {*marked(program, "not")} & {*lines}, note
    assert re.search(KINDS[kind], (remedies or facts)[0]), note
    assert not re.search(r"  because of .*(  \S+:\d+ .*)\n.*  becomes .*\1", note), note
    assert (CHECKED in remedies) == (kind == "begin"), note
    program(fixed=True)


def test_every_branch_that_returns_another_dtype_is_to_be_changed():
    same, wide = (lambda x: x), (lambda x: x * SCALE)
    note = note_on(lambda: lax.switch(1, [same, wide, same], HALF))
    assert "Let branches[0] and branches[2] return result as float32" in note, note
    assert "closed over" not in note_on(lambda: lax.cond(True, wide, same, operand=HALF))


def test_a_branch_closes_over_a_traced_number():
    branches = lambda n: lax.cond(True, lambda x: n, lambda x: x, HALF[0])
    assert "closed over" in note_on(lambda: jax.jit(branches)(2.0))


def test_an_argument_that_a_line_rounds_begins_wider():
    def select(x):
        narrow = (x * SCALE).astype(BF16)
        return lax.select(x > 0, narrow, x)

    assert "begin narrow as float32" in note_on(lambda: jax.jit(select)(WIDE))


def test_an_array_that_is_given_twice_is_written_twice():
    """`strong(params)` is one array again: it has to have both."""
    params = jnp.ones(3)
    update = jax.jit(lambda params, average: (params, average), donate_argnums=(0, 1))
    assert note_on(lambda: update(params, params)).endswith("strong((params, params)).")
    update(*dtypeguard.strong((params, params)))


def test_an_average_of_an_optimizer_may_begin_wider():
    """A guard comes first, and keeps it in 16 bits, in which it may not move."""
    average = optax.ema(0.999)
    step = lambda state, x: (average.update(x, state)[1], None)
    note = note_on(lambda: lax.scan(step, average.init(HALF), XS))
    first, second, *_ = [x for x in note.splitlines()[1:] if not x.startswith("  ")]
    assert re.search(KINDS["wrap"], first), note
    assert re.match(r"Or at \S+ begin \S+ as float32\.$", second), note


def test_a_trial_of_a_remedy_replaces_no_stream():
    """With two trials in two threads, the stream of one stayed for good."""
    streams = []

    def body(carry, _):
        streams.append(sys.stdout)
        return carry.astype(F32), None

    assert "Checked" in note_on(lambda: lax.scan(body, HALF, None, 2))
    assert len(streams) > 1
    assert set(streams) == {sys.stdout}
