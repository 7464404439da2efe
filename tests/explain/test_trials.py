"""What a note says to write has been tried; what loses least comes first."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest
from advice import applied, line as line_of, note_on
from helpers import need
from jax import lax

pytestmark = pytest.mark.third_party
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
X = jnp.ones((5, 3))
TRIED = "Tried: the types then agree."


def line(mark):
    return line_of(__file__, mark)


def followed(program):
    """A program after the first thing that its note says to write in place of something."""
    note = note_on(program)
    new, old = re.search(r"write (.+?) in place of (.+?)\.\n", note).groups()
    return note, applied(program, (old, new))


def by_numbers():
    def body(avg, x):
        return 0.999 * avg + 0.001 * x, None

    return lax.scan(body, jnp.zeros(3, BF16), X)[0]


def by_a_computed_decay():
    def body(carry, x):
        avg, n = carry
        decay = jnp.minimum(0.999, (1 + n) / (10 + n))
        return (decay * avg + (1 - decay) * x, n + 1), None

    return lax.scan(body, (jnp.zeros(3, BF16), jnp.float32(0)), X)[0][0]


def by_a_step():
    def body(avg, x):
        return avg + 0.01 * (x - avg), None

    return lax.scan(body, jnp.zeros(3, BF16), X)[0]


def by_a_count():
    def body(carry, x):
        mean, n = carry
        return (mean - (mean - x) / (n + 1), n + 1), None

    return lax.scan(body, (jnp.zeros(3, BF16), jnp.float32(0)), X)[0][0]


def by_optax():
    def body(target, x):
        return optax.incremental_update(x, target, 0.005), None

    return lax.scan(body, jnp.zeros(3, BF16), X)[0]


def of_a_tree():
    def body(avg, x):
        return jax.tree.map(lambda a: 0.99 * a + (1 - 0.99) * x, avg), None

    return lax.scan(body, {"w": jnp.zeros(3, BF16)}, X)[0]["w"]


def running_sum():
    def body(total, x):
        return total + jnp.mean(x), None

    return lax.scan(body, jnp.zeros((), BF16), X)[0]


AVERAGES = (
    by_numbers,
    by_a_computed_decay,
    by_a_step,
    by_a_count,
    by_optax,
    of_a_tree,
    running_sum,
)


@pytest.mark.parametrize("program", AVERAGES, ids=lambda program: program.__name__)
def test_an_average_and_a_sum_begin_in_float32_before_any_guard(program):
    note, mended = followed(program)
    begin, guard, tried, *_ = note.splitlines()[note.count("\n  ") + 1 :]
    assert re.match(r"At \S+ begin \S+ as float32: write ", begin)
    assert guard.startswith("Or write lax.scan(dtypeguard.guard_step(body), ")
    assert tried == TRIED
    assert mended().dtype == F32


def momentum():
    def body(m, g):
        return 0.9 * m + g, None

    return lax.scan(body, jnp.zeros(3, BF16), X)[0]


def test_momentum_is_no_average():
    assert "begin m as" not in note_on(momentum)


def of_two_dtypes():
    params = {"w": jnp.ones(3, BF16), "scale": jnp.ones(3)}

    def body(params, _):
        grads = jax.tree.map(lambda p: p.astype(F32) * 0.1, params)  # cast
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), None  # update

    return lax.scan(body, params, None, 3)[0]["w"]


def test_a_cast_that_would_change_other_leaves_is_not_said():
    note = note_on(of_two_dtypes)
    assert f"forced by {line('cast')}" in note
    new, old = "(p - 0.1 * g).astype(p.dtype)", "p - 0.1 * g"
    assert f"or at {line('update')} write {new} in place of {old}." in note
    assert "x.astype(jnp.bfloat16)" not in note
    assert TRIED in note
    mended = applied(of_two_dtypes, (f"lambda p, g: {old}", f"lambda p, g: {new}"))
    assert mended().dtype == BF16


def a_loss_scale():
    jmp = need("jmp")
    scale = jmp.DynamicLossScale(jnp.float16(2**15))

    def body(scale, x):
        return scale.adjust(x > 0), None

    return lax.scan(body, scale, jnp.ones(3))[0].loss_scale


def test_what_a_package_is_given_is_made_in_another_dtype_at_the_users_line():
    note, mended = followed(a_loss_scale)
    assert "write jnp.float32(2**15) in place of jnp.float16(2**15).\n" in note
    assert mended().dtype == F32


def a_loss_scale_of_an_int():
    jmp = need("jmp")
    scale = jmp.DynamicLossScale(jnp.asarray(2**15))
    return scale.adjust(jnp.array(True)).loss_scale


@pytest.mark.filterwarnings("ignore:Expected floating type")
def test_what_a_package_is_given_is_made_where_another_type_was_forced():
    """The comments on jmp issue 25: the loss scale is to be a float."""
    note, mended = followed(a_loss_scale_of_an_int)
    new, old = "jnp.asarray(2**15, dtype=jnp.float32)", "jnp.asarray(2**15)"
    assert f"write {new} in place of {old}.\n" in note
    assert mended().dtype == F32


def flag_for_an_index():
    @jax.jit
    def change(x, i):
        with jax.enable_x64(True):
            n = i.astype(jnp.int64)  # index
        return x[n]

    return change(jnp.ones(4), 1)  # call


def flag_for_a_function():
    @jax.jit
    def largest(x):
        with jax.enable_x64(True):
            return x[jnp.argmax(x)]  # largest

    return largest(jnp.ones(4))  # call of largest


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
@pytest.mark.skipif(not hasattr(jax, "enable_x64"), reason="before JAX 0.8")
@pytest.mark.parametrize(
    ("program", "made", "call"),
    [
        (flag_for_an_index, "index", "call"),
        (flag_for_a_function, "largest", "call of largest"),
    ],
    ids=["index", "argmax"],
)
def test_the_flag_is_set_around_the_call_that_jax_traces(program, made, call):
    note = note_on(program)
    assert line(made) in note.splitlines()[1]
    assert note.endswith(
        f"Set the flag around the call at {line(call)}: with jax.enable_x64(True).\n{TRIED}"
    )
    with jax.enable_x64(True):
        program()


def counted_with_a_point():
    def body(n, x):
        return n + 1.0, x

    return lax.scan(body, jnp.int32(0), None, 2)[0]


def beside_others():
    def body(carry, x):
        total = carry["total"] + jnp.sum(x)
        return {"n": carry["n"] + 1, "total": total}, None

    start = {"n": jnp.zeros((), int), "total": jnp.zeros((), int)}
    return lax.scan(body, start, X)[0]["total"]


def of_an_array():
    def body(x, _):
        return x * 0.5, None

    return lax.scan(body, jnp.array([1, 0]), None, 2)[0]


def of_variables():
    params = {"w": jnp.ones(3, BF16)}
    average = jax.tree.map(jnp.copy, params)
    scale = jnp.ones(3)

    def body(carry, _):
        params, average = carry
        average = jax.tree.map(lambda a, p: 0.99 * a + 0.01 * scale * p, average, params)
        return (params, average), None

    return lax.scan(body, (params, average), None, 2)[0][1]["w"]


WRITTEN = {
    counted_with_a_point: ("1.0", "1", jnp.int32),
    beside_others: (
        '"total": jnp.zeros((), int)',
        '"total": jnp.zeros((), jnp.float32)',
        F32,
    ),
    of_an_array: ("jnp.array([1, 0])", "jnp.array([1, 0], dtype=jnp.float32)", F32),
    of_variables: (
        "jax.tree.map(jnp.copy, params)",
        "jax.tree.map(lambda x: x.astype(jnp.float32), jax.tree.map(jnp.copy, params))",
        F32,
    ),
}


@pytest.mark.parametrize("program", WRITTEN, ids=lambda program: program.__name__)
def test_what_is_written_is_the_users_own_expression(program):
    old, new, dtype = WRITTEN[program]
    inside = [text.partition(": ")[2] or text for text in (new, old)]
    inside = [new, old] if program is of_variables else inside
    if program is beside_others:  # what is written twice on its line is written out whole
        inside = [f'{{"n": jnp.zeros((), int), {text}}}' for text in (new, old)]
    assert f"write {inside[0]} in place of {inside[1]}" in note_on(program)
    assert applied(program, (old, new))().dtype == dtype


STATE = {"x": jnp.zeros(3, BF16), "n": jnp.int32(0)}


def reset_in_a_map():
    def body(state, x):
        moved = {"x": state["x"] + x, "n": state["n"] + 1}
        fresh = {"x": jnp.zeros(3), "n": jnp.int32(0)}
        state = jax.tree.map(lambda a, b: jnp.where(moved["n"] > 3, a, b), fresh, moved)
        return state, None

    return lax.scan(body, STATE, jnp.ones((4, 3), BF16))[0]


def selected_in_a_map():
    moved = {"x": STATE["x"] + jnp.bfloat16(1), "n": STATE["n"]}
    fresh = {"x": jnp.zeros(3), "n": jnp.int32(0)}
    return jax.tree.map(lambda a, b: lax.select(True, a, b), fresh, moved)


WHERE = 'jnp.where(moved["n"] > 3, a, b)'


@pytest.mark.parametrize(
    ("program", "said", "change"),
    [
        (reset_in_a_map, (WHERE, f"{WHERE}.astype(b.dtype)"), None),
        (
            selected_in_a_map,
            ("a", "a.astype(b.dtype)"),
            ("True, a", "True, a.astype(b.dtype)"),
        ),
        (selected_in_a_map, ("b", "b.astype(a.dtype)"), (", b)", ", b.astype(a.dtype))")),
    ],
)
def test_a_cast_in_the_lambda_of_a_map_is_to_the_types_of_the_other_tree(
    program, said, change
):
    """A cast to one dtype would change the other leaves."""
    note, (old, new) = note_on(program), said
    assert f"write {new} in place of {old}." in note
    assert TRIED in note
    assert applied(program, change or said)()["n"].dtype == jnp.int32


def chained_numbers():
    def body(carry, x):
        added = [carry[0] + x, *map(jnp.add, carry[1:], carry[:-1])]
        return list(map(jnp.asarray, added)), None

    first = [0.0] * 3  # numbers
    return lax.scan(body, first, jnp.ones(5, F16))[0]


def test_a_python_number_that_a_loop_begins_with():
    """JAX promotes such leaves once, and a guard leaves them to JAX (jax issue 9046)."""
    note = note_on(chained_numbers)
    assert f"  carry[1]  float32[] -> float16[]  begins at {line('numbers')}  " in note
    assert "begin carry[1] as float16: jnp.asarray(x, jnp.float16)." in note
    assert "guard_step" not in note
    assert ").astype(" not in note
    first = "[0.0] * 3", "[0.0, jnp.asarray(0.0, jnp.float16), 0.0]"
    assert {x.dtype for x in applied(chained_numbers, first)()} == {jnp.dtype(F16)}


def once():
    calls = []

    def body(avg, x):
        calls.append(x)
        if len(calls) > 1:
            raise RuntimeError("this function is traced in its own place alone")
        return 0.999 * avg + 0.001 * x, None

    first = jnp.zeros(3, BF16)
    return jax.lax.scan(body, first, X)[0]


def test_a_body_that_cannot_be_traced_again():
    """As in a `hk.transform`: the types are pushed through its equations."""
    note = note_on(once)
    new, old = "jnp.zeros(3, jnp.float32)", "jnp.zeros(3, BF16)"
    assert f"begin avg as float32: write {new} in place of {old}.\n" in note
    assert TRIED in note
    assert applied(once, (old, new))().dtype == F32


def like_the_carry(other):
    def body(carry, x):
        avg, last = carry
        return (0.999 * avg + 0.001 * x, other(last, avg)), None

    first = jnp.zeros(3, BF16), jnp.zeros(3, BF16)
    return lax.scan(body, first, X)


@pytest.mark.parametrize(
    "other",
    [
        lambda last, avg: (last + 1).astype(avg.dtype),
        lambda last, avg: last + jnp.zeros_like(avg),
    ],
)
def test_a_first_value_that_others_follow_is_traced(other):
    """The types of the equations do not tell that a cast is to the dtype of a leaf."""
    assert "begin carry[0] as float32" not in note_on(lambda: like_the_carry(other))
