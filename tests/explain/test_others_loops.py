"""Loops that JAX wrote, of a backward pass and of Equinox: the lines are the user's."""

import functools
import linecache
import os
import re
import sysconfig

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from advice import applied, line, note_on
from helpers import need, set_x64
from jax import lax
from jax.experimental.ode import odeint

from dtypeguard import guard, guard_step

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
DOUBLE = np.float32(2)  # the factor


def conjugate_gradient():
    b = jnp.ones(3, BF16)
    return jax.scipy.sparse.linalg.cg(lambda v: v * DOUBLE, b)[0]  # the call


def stabilized_gradient():
    b = jnp.ones(3, BF16)
    x0 = jnp.zeros(3, BF16)
    return jax.scipy.sparse.linalg.bicgstab(  # the call
        lambda v: v * DOUBLE,
        b,
        x0=x0,
    )[0]


def minimal_residuals():
    b = jnp.ones(3, BF16)
    solve = functools.partial(jax.scipy.sparse.linalg.gmres, solve_method="incremental")
    return solve(lambda v: v * DOUBLE, b)[0]  # the call


def differential_equation():
    y0, times = jnp.ones(3, BF16), jnp.linspace(0, 1, 3)
    return odeint(lambda y, t: -y * DOUBLE, y0, times)[-1]  # the call


def differential_equation_jitted():
    y0, times = jnp.ones(3, BF16), jnp.linspace(0, 1, 3)
    solve = jax.jit(lambda y0: odeint(lambda y, t: -y * DOUBLE, y0, times))  # the call
    return solve(y0)[-1]


B = ("b = jnp.ones(3, BF16)", "b = jnp.ones(3, BF16).astype(jnp.float32)")
X0 = ("x0 = jnp.zeros(3, BF16)", "x0 = jnp.zeros(3, BF16).astype(jnp.float32)")
Y0 = ("y0, times)", "y0.astype(jnp.float32), times)")
JAXS = {
    conjugate_gradient: ("cg its b", [B]),
    stabilized_gradient: ("bicgstab its b and its x0", [B, X0]),
    minimal_residuals: ("gmres its b", [B]),
    differential_equation: ("odeint its y0", [Y0]),
    differential_equation_jitted: ("odeint its y0", [Y0]),
}


@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types")
@pytest.mark.parametrize("program", JAXS, ids=lambda program: program.__name__)
def test_a_loop_that_jax_wrote(program):
    what, changes = JAXS[program]
    _, row, *lines, advice, tried = note_on(program).splitlines()
    assert re.search(
        r"b?float\d+(\[.*\])? -> b?float\d+(\[.*\])?  .*test_others_loops", row
    )
    if tried.startswith("Every leaf: "):
        *lines, advice, tried = *lines, advice
    assert tried == "Tried: the types then agree."
    assert lines[-1].endswith("# the call")
    assert advice == f"Give {what} as float32: x.astype(jnp.float32)."
    assert applied(program, *changes)().dtype == F32


CONJUGATE = """
import jax
def solve(f, b):
    return jax.scipy.sparse.linalg.cg(f, b)[0]
"""
RETURNS = """
import jax
def solve(values, rewards):
    def body(acc, x):
        return 0.9 * acc + x, None
    return jax.lax.scan(body, values[-1], rewards)[0]
"""
SCALED = """
import jax, numpy as np
SCALE = np.float32(2)
def solve(values):
    return jax.lax.fori_loop(0, 2, lambda i, acc: acc * SCALE, values)
"""
ZEROS = """
import jax, jax.numpy as jnp
def solve(rewards):
    return jax.lax.while_loop(lambda c: c < 1, lambda c: c + rewards.sum(), jnp.bfloat16(0))
"""
BRANCHES = """
import jax, jax.numpy as jnp
def solve(x, y, loss=jnp.sum):
    return jax.lax.cond(x.sum() > 0, lambda: loss(x), lambda: y.sum())
"""


@pytest.fixture
def package(monkeypatch):
    """Makes the function `solve` of an installed package from its source."""

    def install(source):
        file = os.path.join(sysconfig.get_path("purelib"), "solving", "solve.py")
        lines = (len(source), None, source.splitlines(), file)
        monkeypatch.setitem(linecache.cache, file, lines)
        exec(compile(source, file, "exec"), solving := {"__name__": "solving.solve"})
        return solving["solve"]

    return install


ONES = jnp.ones(3)
PACKAGES = {
    "jax's": (CONJUGATE, (lambda v: v * DOUBLE, ONES.astype(BF16)), F32),
    "by what it is given": (RETURNS, (ONES.astype(BF16), ONES), BF16),
    "an int": (RETURNS, (ONES.astype(int), ONES.astype(int)), F32),
    "by its own constant": (SCALED, (ONES.astype(BF16),), F32),
    "that starts by itself": (ZEROS, (ONES,), BF16),
    "over branches": (BRANCHES, (ONES.astype(BF16), ONES), F32),
}


@pytest.mark.parametrize("case", PACKAGES)
def test_a_loop_that_a_package_calls(package, case):
    source, given, dtype = PACKAGES[case]
    solve = package(source)

    def program(convert=lambda x: x):
        args = [convert(x) if isinstance(x, jax.Array) else x for x in given]
        return solve(*args)  # the call of the package

    note = note_on(program)
    name = jnp.dtype(dtype).name
    advice = rf"Give solving its arrays at \S+:(\d+) as {name}: x.astype\(jnp.{name}\)."
    (number,) = re.findall(advice, note)
    assert linecache.getline(__file__, int(number)).endswith("# the call of the package\n")
    assert program(lambda x: x.astype(dtype)).dtype == dtype


CASTS = """
import jax, jax.numpy as jnp
def solve(values):
    add = lambda c, x: ((c + x).astype(jnp.float16), None)
    return jax.lax.scan(add, values.astype(jnp.float32).sum(), values)[0]
"""
MAKES = """
import jax, jax.numpy as jnp
def solve(values):
    add = lambda c, x: (c + jnp.linspace(0, 1, 3), None)
    return jax.lax.scan(add, jnp.zeros(3, jnp.float32), values)[0]
"""
WIDER_FIRST = """
import jax, jax.numpy as jnp
def solve(x, y):
    return jax.lax.cond(x.sum() > 0, lambda: x.sum(), lambda: y.sum())
"""


def test_what_nothing_that_is_given_can_change(package):
    solve = package(CASTS)
    note = note_on(lambda: solve(ONES))
    nothing = "Nothing that you give to solving changes that: it has the type at solving/"
    assert f"{nothing}solve.py:4." in note
    assert "astype" not in note.splitlines()[-1]


@pytest.mark.skipif(not hasattr(jax, "enable_x64"), reason="before JAX 0.8")
def test_what_only_the_flag_changes(package):
    solve = package(MAKES)
    with set_x64(True):
        note = note_on(lambda: solve(jnp.ones(3, F32)))  # the call with x64 on
    where = line(__file__, "the call with x64 on")
    assert f"Turn x64 off around {where}: with jax.enable_x64(False)." in note
    with jax.enable_x64(False):
        assert solve(ONES).dtype == F32


@pytest.mark.skipif(not hasattr(jax, "enable_x64"), reason="before JAX 0.8")
def test_the_flag_is_turned_off_where_wide_arrays_are_made(package):
    solve = package(MAKES)
    with set_x64(True):
        values = jnp.ones((3, 3))
        note = note_on(lambda: solve(values))  # the call with a wide array
    where = line(__file__, "the call with a wide array")
    flag = "with jax.enable_x64(False)"
    assert f"Turn x64 off around {where}, and where values is made: {flag}.\n" in note
    assert "Tried: " in note
    with jax.enable_x64(False):
        assert solve(jnp.ones((3, 3))).dtype == F32


SOLVER = """
import jax
from typing import Any, NamedTuple
class State(NamedTuple):
    time: Any
    dt: Any
@jax.jit
def advance(state):
    later = lambda: state._replace(time=state.time + state.dt)
    return jax.lax.cond(state.dt > 0, later, lambda: state)
class Solver:
    def __init__(self, start, dt):
        self.state = State(start, dt)
    def step(self):
        self.state = advance(self.state)
def solve(start, dt):
    return Solver(start, dt)
"""


@pytest.mark.parametrize("x64", [False, True])
def test_no_flag_makes_a_float_of_an_int(package, x64):
    """Netket issue 1735: a time that begins as 0, in an object of the package."""
    solve = package(SOLVER)
    with set_x64(x64):
        solver = solve(0, 0.1)  # starts
        note = note_on(lambda: solver.step())
    assert "enable_x64" not in note
    assert "Nothing that you give" not in note
    place = line(__file__, "starts")
    assert note.endswith(f"\nAt {place} write 0.0 in place of 0 (not tried).")
    with set_x64(x64):
        solve(0.0, 0.1).step()


DIRECT = """
import jax
def solve(start, dt, times):
    body = lambda i, time: time + jax.numpy.float32(dt)
    return jax.lax.fori_loop(0, times, body, jax.numpy.asarray([start]))
"""


def test_a_float_for_the_int_of_a_call(package):
    solve = package(DIRECT)
    note = note_on(lambda: solve(0, 0.1, times=3))  # an int
    place = line(__file__, "an int")
    assert f"\nAt {place} write 0.0 in place of 0.\nTried: the types then" in note
    assert solve(0.0, 0.1, times=3) > 0.2


@pytest.mark.parametrize("dtypes", [(F32, BF16), (BF16, F32)])
def test_the_wider_of_two_branches_of_a_package_is_meant(package, dtypes):
    solve = package(WIDER_FIRST)
    x, y = map(ONES.astype, dtypes)
    note = note_on(lambda: solve(x, y))
    assert re.search(r"Give solving its arrays at \S+ as float32: ", note)
    assert "Tried: " in note


def test_a_branch_of_a_package_that_calls_the_users_function(package):
    def program(cast=lambda x: x):
        loss = lambda x: cast(jnp.sum(x * DOUBLE))  # the loss
        x = jnp.ones(3, BF16)
        return package(BRANCHES)(x, x, loss)

    note = note_on(program)
    old = "cast(jnp.sum(x * DOUBLE))"
    where = line(__file__, "the loss")
    assert f"At {where} write {old}.astype(jnp.bfloat16) in place of {old}.\n" in note
    assert "Tried: " in note
    assert program(lambda x: x.astype(BF16)).dtype == BF16


def with_backward(backward):
    """A function with this backward pass, and its gradient at a bfloat16 vector."""
    function = jax.custom_vjp(lambda x: x.sum())
    function.defvjp(lambda x: (jnp.sum(x), x), backward)
    return lambda: jax.grad(lambda x: function(x))(jnp.ones(3, BF16))


def scan_by_a_constant(x, g):
    body = lambda c, _: (c * DOUBLE, None)  # the promotion
    return lax.scan(body, x, None, 2)


def while_over_what_is_closed_over(x, g):
    wide = x.astype(F32)

    def body(carry):
        return carry + wide  # the promotion

    return (lax.while_loop(lambda c: c[0] < 3, body, x),)


def scan_by_what_is_closed_over_through_a_helper(x, g):
    wide = {"rate": [jnp.sin(x.astype(F32))]}
    helper = lambda c: c * wide["rate"][0]  # the promotion

    def body(carry, _):
        return helper(carry), None

    return lax.scan(body, x, None, 2)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jitted"])
@pytest.mark.parametrize(
    "backward",
    [
        scan_by_a_constant,
        while_over_what_is_closed_over,
        scan_by_what_is_closed_over_through_a_helper,
    ],
)
def test_a_loop_of_a_backward_pass(backward, transform):
    note = note_on(transform(with_backward(backward)))
    _, _, code, *_ = note.splitlines()
    assert code.endswith("# the promotion")
    if backward is scan_by_a_constant:
        assert "DOUBLE = np.float32(2)  # the factor" in note


@pytest.mark.parametrize("kind", ["lax", "checkpointed", "bounded"])
@pytest.mark.parametrize("is_flag", [False, True])
def test_a_loop_of_equinox_with_a_carry_of_one_leaf(kind, is_flag):
    eqxi = need("equinox.internal")
    condition = lambda x: x < 3

    def body(x):
        return x > DOUBLE if is_flag else x * DOUBLE  # the promotion

    def loop(body=body):
        start = jnp.ones((), BF16)
        return eqxi.while_loop(condition, body, start, max_steps=3, kind=kind)

    _, row, code, *advice = note_on(loop).splitlines()
    assert f"x  bfloat16[] -> {'bool' if is_flag else 'float32'}[]" in row
    assert code.endswith("# the promotion")
    if not is_flag:
        assert (
            "eqxi.while_loop(condition, dtypeguard.guard_step(body), start, max"
            in "".join(advice)
        )
        assert loop(guard_step(body)).dtype == BF16


def searched():
    def objective(x):
        return jnp.sum((x - np.arange(3.0)) ** 2)

    opt = guard(optax.lbfgs())
    params = jnp.zeros(3, F32)
    state = opt.init(params)
    value_and_grad = optax.value_and_grad_from_state(objective)
    value, grad = value_and_grad(params, state=state)
    given = {"value": value, "grad": grad, "value_fn": objective}
    updates, state = opt.update(grad, state, params, **given)
    return optax.apply_updates(params, updates)


def test_an_objective_in_float64_of_params_in_float32():
    """`guard` brings what it returns to float32; Optax's `cond` outside of it does not."""
    with set_x64(True):
        note = note_on(searched)
        old = "jnp.sum((x - np.arange(3.0)) ** 2)"
        assert f"write {old}.astype(jnp.float32) in place of {old}.\n" in note
        assert applied(searched, (old, f"{old}.astype(jnp.float32)"))().dtype == F32
