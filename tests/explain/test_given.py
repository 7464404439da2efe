"""Of what a loop is given, notes name the line that made it: its carry and its inputs."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from advice import line as line_of, note_on, raised
from jax import lax

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32


line = functools.partial(line_of, __file__)


def row(call):
    """The row of the only leaf that a note is about."""
    (found,) = [
        each for each in note_on(call).splitlines() if re.match(r"  \S+ +\S+ -> ", each)
    ]
    return found


def widened(carry, x):
    return carry * x, None


def test_a_first_value_that_a_variable_holds():
    first = {"ema": jnp.zeros(3, BF16)}  # first: variable
    found = row(lambda: lax.scan(lambda c, x: ({"ema": c["ema"] * x}, None), first, X))
    assert found.endswith(f"begins at {line('first: variable')}")


def test_a_first_value_that_a_traced_line_makes():
    @jax.jit
    def train(x):
        narrow = x.astype(BF16)  # first: traced
        return lax.scan(widened, narrow * 2, X)

    assert row(lambda: train(jnp.ones(3))).endswith(f"begins at {line('first: traced')}")


def test_a_first_value_beside_a_length():
    @jax.jit
    def train(x):
        count = jnp.int32(x[0])  # first: beside a length
        body = lambda c, _: (c + jax.grad(lambda y: y * 2.0)(c), None)
        return lax.scan(body, count, xs=X, length=len(X))

    note = note_on(lambda: train(jnp.ones(3)))
    assert f"  y = c  int32[]  {line('first: beside a length')}" in note.splitlines()


class Anything:
    def __getattr__(self, name):
        return self


class Simulation:
    other = Anything()

    def prepare(self):
        self.field = jnp.zeros(3)
        self.field = self.field.astype(BF16)  # first: field

    @functools.partial(jax.jit, static_argnums=0)
    def turns(self, field):
        return lax.scan(widened, field, X)[0]


class Plain(Simulation):
    def run(self):
        self.field = self.turns(self.field)


class Scaled(Simulation):
    def run(self):
        self.field = self.turns(self.field) * 2


def test_a_first_value_that_a_field_of_an_object_holds():
    plain, scaled = Plain(), Scaled()
    plain.prepare(), scaled.prepare()
    assert row(plain.run).endswith(f"begins at {line('first: field')}")
    assert line("first: field") not in row(scaled.run)  # the last turn may have made it


@functools.partial(jax.jit, static_argnames="turns")
def walk(first, rate, turns):
    return lax.scan(lambda c, x: (c - rate * x, None), first, X[:turns])


def test_a_first_value_beside_a_static_number():
    by_place = lambda: walk(jnp.zeros(3, BF16), 0.1, turns=2)  # first: by place
    by_name = lambda: walk(turns=2, rate=0.1, first=jnp.zeros(3, BF16))  # first: by name
    assert row(by_place).endswith(f"begins at {line('first: by place')}")
    assert row(by_name).endswith(f"begins at {line('first: by name')}")


def test_a_first_value_like_another():
    @jax.jit
    def train(x):
        value = jnp.tanh(x.astype(BF16))  # first: like
        return lax.scan(widened, jnp.zeros_like(value), X)

    assert row(lambda: train(jnp.ones(3))).endswith(f"begins at {line('first: like')}")


def test_a_first_value_of_a_shape_and_not_of_a_type_of_another():
    @jax.jit
    def train(x):
        start = jnp.zeros(x.shape, BF16)  # first: shape
        return lax.scan(widened, start, X)

    found = row(lambda: train(jnp.ones(3, BF16)))
    assert found.endswith(f"begins at {line('first: shape')}")


def test_a_first_value_that_an_earlier_turn_gave_back():
    @jax.jit
    def train(state, x):
        return lax.scan(widened, state, x)[0].astype(BF16), x.sum()

    def run():
        state = jnp.zeros(3, BF16)
        for dtype in (BF16, F32):
            state, total = train(state, jnp.ones((2, 3), dtype))  # first: turn
            print(total)

    assert row(run).endswith(f"begins at {line('first: turn')}")


def test_a_first_value_in_the_first_turn():
    def run():
        state = jnp.zeros(3, BF16)  # first: first turn
        for _ in range(2):
            state, total = lax.scan(widened, state, X)
            print(total)

    assert row(run).endswith(f"begins at {line('first: first turn')}")


def test_a_first_value_of_a_line_that_runs_only_once():
    def run(w, n):
        w = jnp.asarray(w, BF16)  # first: once
        w, _ = lax.scan(widened, w, X)
        n = n + 1
        return w, n

    assert row(lambda: run(np.ones(3), 1)).endswith(f"begins at {line('first: once')}")


@pytest.mark.parametrize("is_narrow", [True, False])
def test_a_first_value_of_one_of_two_branches(is_narrow):
    def run():
        if is_narrow:  # noqa: SIM108 - the lines are what counts
            w = jnp.zeros(3, BF16)
        else:
            w = jnp.zeros(3, jnp.float16)
        return lax.scan(widened, w, X)

    assert "begins" not in row(run)


def test_a_first_value_that_an_assignment_to_an_item_made():
    def in_a_dict(first):
        state = {"w": jnp.zeros(3, F32)}
        state["w"] = first.astype(BF16)
        return lax.scan(widened, state["w"], X)

    def in_a_list(first):
        state = [jnp.zeros(3, F32)]
        state[0] = first.astype(BF16)
        both = (state[0], 3)
        return lax.scan(widened, state[0], X), both

    for run in (in_a_dict, in_a_list):
        assert "begins" not in row(lambda: run(jnp.zeros(3)))  # noqa: B023


def test_wide_inputs_of_a_loop():
    @jax.jit
    def train(first, xs):
        return lax.scan(widened, first, xs)

    xs = jnp.ones((2, 3), F32)  # wide: inputs
    found = row(lambda: train(jnp.zeros(3, BF16), xs))
    assert f"forced by {line('wide: inputs')}  begins" in found


def data():
    rows = [[1.0, 2.0, 3.0]] * 2
    return np.asarray(rows, np.float32)  # wide: returned


def test_wide_inputs_that_a_loop_takes_and_its_body_prints():
    @jax.jit
    def train(start, inputs):
        return lax.scan(widened, start, inputs)

    for inputs in [jnp.ones((2, 3))]:  # wide: taken
        narrow = jnp.ones(3, BF16)
        found = row(lambda inputs=inputs, narrow=narrow: train(narrow, inputs))
        assert f"forced by {line('wide: taken')}" in found, f"{found}, Loss: {narrow}"


def test_wide_inputs_of_a_statement_with_a_text_that_numpy_does_not_read():
    @jax.jit
    def train(start, inputs):
        return lax.scan(widened, start, inputs)

    inputs = jnp.ones((2, 3), {", Loss: ": F32}[", Loss: "])  # wide: text
    found = row(lambda: train(jnp.ones(3, BF16), inputs))
    assert f"forced by {line('wide: text')}" in found


def test_wide_inputs_that_a_function_of_the_users_returned():
    xs = data()
    ys = jnp.asarray(data())
    for wide in (xs, ys):
        found = row(lambda: lax.scan(widened, jnp.zeros(3, BF16), wide))  # noqa: B023
        assert f"forced by {line('wide: returned')}  begins" in found
    zs = jax.tree.map(jnp.asarray, data())
    found = row(lambda: lax.scan(widened, jnp.zeros(3, BF16), zs))
    assert f"forced by {line('wide: returned')}  begins" in found


def test_wide_inputs_that_a_line_computes_from_what_was_returned():
    xs = data() * np.float32(2)  # wide: computed
    found = row(lambda: lax.scan(widened, jnp.zeros(3, BF16), xs))
    assert f"forced by {line('wide: computed')}  begins" in found


def test_another_leaf_of_the_carry_that_is_wide():
    def body(carry, _):
        params, rate = carry
        return (params * rate, rate), None

    rate = jnp.asarray(0.1, F32)  # wide: leaf
    found = row(lambda: lax.scan(body, (jnp.ones(3, BF16), rate), None, 2))
    assert f"forced by {line('wide: leaf')}  begins" in found


@pytest.mark.parametrize("name", ["clip", "scale", "chain"])
def test_a_number_that_optax_was_given(name):
    make = optax.clip if name == "clip" else optax.scale
    inner = make(np.float32(0.5))  # wide: optax
    opt = optax.chain(optax.identity(), inner) if name == "chain" else inner
    params = jnp.ones(3, BF16)
    state = opt.init(params)

    def step(params, _):
        updates, _ = opt.update(params, state)
        return updates, None

    assert f"forced by {line('wide: optax')}  begins" in row(
        lambda: lax.scan(step, params, None, 2)
    )


X = jnp.ones((2, 3), F32)


def scaled(matrix, offset, state, xs):
    def step(state, x):
        state = matrix * state + offset * x
        return state, None

    return lax.scan(step, state, xs)


def test_what_a_body_closes_over_is_made_where_its_caller_got_it():
    """And not where the function around the body declares its parameter."""

    def make():
        return jnp.full(3, 2, F32), jnp.zeros(3, BF16)

    def program():
        matrix, offset = make()  # closed over: matrix
        return scaled(matrix, offset, jnp.zeros(3, BF16), X.astype(BF16))

    assert f"forced by {line('closed over: matrix')}" in row(program)


def test_what_a_body_is_made_with():
    def make(factor):
        def body(state, _):
            return state * factor, None

        return body

    def program():
        factor = jnp.float32(2)  # closed over: factor
        body = make(factor)
        return lax.scan(body, jnp.ones(3, BF16), None, 3)

    assert f"forced by {line('closed over: factor')}" in row(program)


def assigned_by_global():
    global SCALE
    SCALE = jnp.ones(3)  # declared: global
    lax.scan(lambda c, x: (c * SCALE, None), jnp.ones(3, BF16), X.astype(BF16))


def assigned_by_nonlocal():
    scale = jnp.ones(3, BF16)

    def widen():
        nonlocal scale
        scale = jnp.ones(3)  # declared: nonlocal
        lax.scan(lambda c, x: (c * scale, None), jnp.ones(3, BF16), X.astype(BF16))

    widen()
    return scale


def assigned_by_nested_nonlocal():
    scale = None

    def outer():
        def widen():
            nonlocal scale
            scale = jnp.ones(3)  # declared: nested nonlocal

        widen()
        lax.scan(lambda c, x: (c * scale, None), jnp.ones(3, BF16), X.astype(BF16))

    outer()
    return scale


@pytest.mark.parametrize(
    "program", [assigned_by_global, assigned_by_nonlocal, assigned_by_nested_nonlocal]
)
def test_a_variable_that_a_function_declares_as_anothers(program):
    kind = program.__name__.removeprefix("assigned_by_").replace("_", " ")
    assert f"forced by {line(f'declared: {kind}')}" in row(program)


SCALE = OFFSET = jnp.ones(3, BF16)  # may be: global


def of_a_global():
    def widen():
        global OFFSET
        OFFSET = jnp.ones(3)

    def body(carry, _):
        return carry * OFFSET, None

    widen()
    lax.scan(body, jnp.ones(3, BF16), None, 3)


def of_a_nonlocal():
    offset = jnp.ones(3, BF16)  # may be: nonlocal

    def widen():
        nonlocal offset
        offset = jnp.ones(3)

    def body(carry, _):
        return carry * offset, None

    widen()
    lax.scan(body, jnp.ones(3, BF16), None, 3)


@pytest.mark.parametrize("program", [of_a_global, of_a_nonlocal])
def test_a_variable_that_another_function_may_have_assigned(program):
    """One of two lines made the value, and the source does not tell which."""
    kind = program.__name__.removeprefix("of_a_")
    assert line(f"may be: {kind}") not in note_on(program)


def test_a_global_that_a_function_between_has_another_of():
    """The function does not close over the variable of the same name around it."""

    def program():
        WIDE = jnp.ones(3, BF16)

        def body(carry, _):
            return carry * globals()["WIDE"], None

        return lax.scan(body, jnp.ones(3, BF16), None, 3), WIDE

    assert f"forced by {line('the global of two')}" in row(program)


WIDE = jnp.ones(3)  # the global of two


def test_what_jax_refuses_begins_in_another_dtype():
    def fit():
        params = jnp.array([-3, 5])  # first: ints
        return jax.grad(lambda x: jnp.sum(x**2))(params)

    def solve():
        root = jnp.ones((1, 1), jnp.bfloat16)  # first: 16 bits
        matrix = root.T @ root
        return jnp.linalg.inv(matrix)

    text = "write jnp.array([-3, 5], dtype=jnp.float32) in place of jnp.array([-3, 5])"
    note = note_on(fit)
    assert f"\nAt {line('first: ints')} {text} (not tried).\nOr at " in note
    text = "write jnp.ones((1, 1), jnp.float32) in place of jnp.ones((1, 1), jnp.bfloat16)"
    if isinstance(raised(solve), TypeError):  # JAX 0.10 leaves it to LAPACK
        assert f"\nAt {line('first: 16 bits')} {text} (not tried).\nOr at " in note_on(
            solve
        )


def test_of_two_ints_the_cast_that_wraps_nothing_comes_first():
    def choose(scores):
        best = jnp.argmax(scores).astype(jnp.uint8)
        drawn = jax.random.randint(jax.random.key(0), (), 0, 3)
        return lax.select(scores[0] > 1, best, drawn)

    note = note_on(lambda: choose(jnp.ones(3)))
    wide, narrow = "write best.astype(jnp.int32)", "write drawn.astype(jnp.uint8)"
    assert note.index(wide) < note.index(narrow)
