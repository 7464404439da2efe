"""Errors over types that are not JAX's own have the lines of the arrays that they name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from advice import applied, line as line_of, note_on, notes, raised
from helpers import need
from jax import lax

pytestmark = pytest.mark.third_party
X = jnp.ones(3)


def solve(structure, x):
    """A function that checks its arguments as lineax, chex and jaxtyping do."""
    if structure.dtype != x.dtype:
        raise ValueError(
            "matching input and output structures: "
            f"ShapeDtypeStruct(shape=(3,), dtype={structure.dtype}), not {x.dtype}"
        )
    return x


def assert_type(x, dtype):
    assert x.dtype == dtype, f"Input has type {x.dtype} but expected {jnp.dtype(dtype)}"


def line(mark):
    return line_of(__file__, mark)


def test_a_value_error_that_names_two_types():
    wide = X * jnp.float32(2)  # wide
    narrow = X.astype(jnp.bfloat16)  # narrow
    note = note_on(lambda: solve(wide, narrow))
    head, first, second, *_ = note.splitlines()
    assert head == "dtypeguard: solve refuses the type of what it is given."
    assert first.startswith("  wide    float32[3]")
    assert second == f"  narrow  bfloat16[3]  {line('narrow')}"


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_an_assertion(transform):
    @transform
    def program(x):
        scaled = x * jnp.bfloat16(2)  # scaled
        assert_type(scaled, jnp.float32)

    narrow = X.astype(jnp.bfloat16)
    assert f"  scaled  bfloat16[3]  {line('scaled')}" in note_on(lambda: program(narrow))


@pytest.mark.parametrize("limits", [jnp.finfo, jnp.iinfo], ids=lambda x: x.__name__)
def test_limits_of_the_other_kind(limits):
    x = jnp.zeros(3, jnp.int32 if limits is jnp.finfo else jnp.float32)  # limits
    note = note_on(lambda: limits(x.dtype))
    assert f"  {line('limits')}" in note


def of_lineax():
    lineax = need("lineax")
    operator = lineax.MatrixLinearOperator(jnp.eye(3, dtype=jnp.bfloat16))  # matrix
    b = jnp.ones(3)  # vector
    return lineax.linear_solve(operator, b).value


def test_the_structures_of_lineax():
    note = note_on(of_lineax)
    assert f"  operator  bfloat16[3,3]  {line('matrix')}" in note
    assert f"  b         float32[3]     {line('vector')}" in note
    old, new = "dtype=jnp.bfloat16", "dtype=jnp.float32"
    assert f"write jnp.eye(3, {new}) in place of jnp.eye(3, {old}).\nTried: " in note
    assert applied(of_lineax, (old, new))().dtype == jnp.float32


def common_dtype(*arrays):
    """A check of several arrays as TensorFlow Probability's."""
    types = [x.dtype.type for x in arrays]
    if len(set(types)) > 1:
        raise TypeError(f"Found incompatible dtypes, {types[0]} and {types[1]}.")
    return arrays[0]


def of_a_distribution():
    means = X.astype(jnp.bfloat16)  # means
    log_stds = jnp.zeros(3)
    return common_dtype(means, jnp.exp(log_stds) * 0.5)


def test_one_of_two_types_in_an_expression():
    note = note_on(of_a_distribution)
    assert f"  means  bfloat16[3]  {line('means')}" in note
    new, old = "X.astype(jnp.float32)", "X.astype(jnp.bfloat16)"
    assert f"write {new} in place of {old} (not tried)." in note
    assert applied(of_a_distribution, (old, new))().dtype == jnp.float32


def test_a_kind_that_a_check_expects():
    def check(xs, kind):
        raise AssertionError(f"input 1 has type {xs[1].dtype} but expected {kind}.")

    rewards = jnp.arange(3)  # rewards
    note = note_on(lambda: check([X + 1, rewards], float))
    assert note.splitlines()[1] == f"  rewards  int32[3]  {line('rewards')}"


def annotated(x, dtype):
    """A function that refuses an argument as jaxtyping does."""
    raise TypeError(
        "Type-check error whilst checking the parameters of annotated.\n"
        "Actual value: i32[3]\nExpected type: <class 'Float[Array, 'n']'>."
    )


def test_an_annotation():
    index = jnp.arange(3)  # index
    note = note_on(lambda: annotated(index, float))
    assert f"  index  int32[3]  {line('index')}" in note


def test_other_errors_have_no_note():
    def program(x):
        raise ValueError("float32 arrays of shape (3,) are expected")

    assert notes(raised(lambda: program(X))) == []


def of_a_tangent():
    y = jnp.array(10)  # whole
    out, linear = jax.linearize(lambda y: (y - jnp.tanh(y + 1)) ** 2, y)
    return jax.linear_transpose(linear, y)(jnp.ones_like(out))


def test_what_has_no_tangent():
    """Optimistix issue 96: JAX says int32 for int32, and float0."""
    note = note_on(of_a_tangent)
    assert f"  primals[0] = y  int32[]  {line('whole')}" in note
    assert applied(of_a_tangent, ("jnp.array(10)", "jnp.array(10, dtype=jnp.float32)"))()


def of_optimistix():
    optimistix = need("optimistix")
    solver = optimistix.GradientDescent(rtol=1e-3, atol=1e-3, learning_rate=0.1)
    y = jnp.array(10)  # minimum
    function, of = lambda y, args: ((y - jnp.tanh(y + 1)) ** 2, None), jnp.float32(0)
    rest = None, {}, jax.eval_shape(lambda: of), None, frozenset()
    state = solver.init(function, y, *rest)
    y, *_ = solver.step(function, y, None, {}, state, frozenset())
    return y


def test_an_int_that_a_package_differentiates():
    note = note_on(of_optimistix)
    assert line("minimum") in note
    old, new = "jnp.array(10)", "jnp.array(10, dtype=jnp.float32)"
    assert f"write {new} in place of {old}.\nTried: " in note
    assert applied(of_optimistix, (old, new))().dtype == jnp.float32


def of_a_rule():
    @jax.custom_vjp
    def model(x, w):
        return x * w

    def backward(given, g):
        x, w = (jnp.float32(each) for each in given)
        return g * w, g * x  # rule

    model.defvjp(lambda x, w: (x * w, (x, w)), backward)

    def loss(w):
        body = lambda x, _: (model(x, w), None)  # model
        return lax.scan(body, jnp.bfloat16(2), None, 3)[0]

    return jax.grad(loss)(jnp.bfloat16(3))


def test_a_rule_that_returns_another_type():
    """JAX asserts that two types agree, and says no more (jax issue 27144)."""
    note = note_on(of_a_rule)
    assert note.startswith("dtypeguard: backward returns a cotangent in another dtype")
    assert f"  {line('model')}  forced by {line('rule')}" in note
    way = f"At {line('rule')} return each cotangent in the dtype of its argument"
    assert f"{way}, as x.astype(jnp.bfloat16) (not tried)." in note
    cast = "(g * w).astype(jnp.bfloat16), (g * x).astype(jnp.bfloat16)"
    assert applied(of_a_rule, ("return g * w, g * x", f"return {cast}"))() == 54


def test_a_mask_of_another_kind():
    def coupling(mask):
        if mask.dtype != bool:
            raise ValueError(
                "`mask` must have values of type `bool`; got values of type "
                f"`{mask.dtype}`."
            )
        return jnp.where(mask, 1, 0)

    def program():
        mask = jnp.arange(3) % 2  # mask
        return coupling(mask)

    note = note_on(program)
    assert f"  mask  int32[3]  {line('mask')}" in note
    assert " write mask.astype(bool) in place of mask (all but 0 becomes True)" in note


def test_an_index_of_numpy_in_64_bits():
    rows = np.linspace(0, 2, 3)  # rows
    note = note_on(lambda: X[(rows,)])
    assert f"float64[3]  {line('rows')}" in note
    index = (rows,)
    assert 'if getattr(x, "dtype", None) == jnp.float64 else x' in note_on(lambda: X[index])
