"""Optimizers with one drift each: the lines that make it and that force it are marked.

`# promotion: NAME` is on the line that the audit must name as the origin, and
`# operand: NAME` on that of the cause, where there is one.
"""

import contextlib
import pathlib
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from dtypeguard import explain
from tests.support import planted_helper
from tests.support.dtypes import BF16, F32
from tests.support.helpers import IS_RECORDED

RECORDED = contextlib.ExitStack()  # until the end of this file
RECORDED.enter_context(explain())

GLOBAL_RATE = np.float32(0.1)  # operand: parameter_of_the_factory


class State(NamedTuple):
    """A leaf that drifts, and a counter that does not."""

    leaf: Any
    count: Any


class Case(NamedTuple):
    """What is planted and how it is to be fed."""

    opt: Any
    grads: Any
    x64: bool
    before: str
    after: str
    where: str = "state"


CASES: dict[str, Case] = {}


def drift(
    *, leaf=None, before="bfloat16", after="float32", grads=BF16, x64=False, wrap=None
):
    """Registers the optimizer whose leaf is updated by the function below it."""
    leaf = leaf or (lambda: jnp.zeros(3, before))

    def register(change):
        def init(params):
            return State(leaf(), jnp.zeros((), jnp.int32))

        def update(updates, state, params=None):
            new = change(state.leaf, updates["w"], state.count)
            return updates, state._replace(leaf=new)

        opt = optax.GradientTransformation(init, update)
        opt = wrap(opt) if wrap else opt
        CASES[change.__name__] = Case(opt, grads, x64, before, after)
        return change

    return register


@drift(before="float32", after="float64", x64=True)
def python_scalar_power_of_a_counter(leaf, grad, count):
    bias = 1 - 0.9**count  # operand: python_scalar_power_of_a_counter
    return leaf / bias  # promotion: python_scalar_power_of_a_counter


@drift()
def asarray_of_a_float(leaf, grad, count):
    scale = jnp.asarray(0.9, F32)  # operand: asarray_of_a_float
    doubled = leaf + leaf
    return doubled * scale  # promotion: asarray_of_a_float


def _with_a_parameter(
    rate=GLOBAL_RATE,
):
    def parameter_of_the_factory(leaf, grad, count):
        return leaf * rate  # promotion: parameter_of_the_factory

    return parameter_of_the_factory


drift()(_with_a_parameter())


@drift()
def inside_cond_branch(leaf, grad, count):
    wide = jnp.ones(3, F32)  # operand: inside_cond_branch

    def yes(x):
        return x * wide  # promotion: inside_cond_branch

    return lax.cond(count > 0, yes, lambda x: wide, leaf)


@drift()
def inside_while_body(leaf, grad, count):
    def body(carry):
        number, total = carry
        return number + 1, total + leaf  # promotion: inside_while_body

    start = jnp.zeros(3, F32)  # operand: inside_while_body
    return lax.while_loop(lambda c: c[0] < 3, body, (0, start))[1]


@jax.custom_vjp
def _kept(x, scale):
    return x * scale  # promotion: inside_custom_vjp


_kept.defvjp(lambda x, s: (_kept(x, s), s), lambda s, g: (g * s, g))


@drift()
def inside_custom_vjp(leaf, grad, count):
    scale = jnp.ones((), F32)
    scale = jnp.full((3,), 2, F32)  # operand: inside_custom_vjp
    return _kept(leaf, scale)


@drift()
def jit_inside_scan_inside_jit(leaf, grad, count):
    wide = jnp.cos(jnp.ones(3, F32))  # operand: jit_inside_scan_inside_jit

    @jax.jit
    def outer(x, w):
        @jax.jit
        def inner(total, row):
            return total + row * x  # promotion: jit_inside_scan_inside_jit

        return lax.scan(lambda c, row: (inner(c, row), None), w, jnp.ones((2, 3), BF16))[0]

    return outer(leaf, wide)


@drift()
def helper_schedule(leaf, grad, count):
    rate = planted_helper.warmup(count)
    return leaf * rate  # promotion: helper_schedule


@drift(grads=F32)
def dtype_taken_from_the_gradient(leaf, grad, count):
    moved = leaf * 2
    return moved.astype(grad.dtype)  # promotion: dtype_taken_from_the_gradient


@drift()
def after_a_harmless_reduction(leaf, grad, count):
    norm = jnp.sqrt(jnp.sum(jnp.square(leaf)))  # up and back again
    mean = jnp.mean(leaf.astype(F32)).astype(BF16)  # by hand
    wide = jnp.ones((), F32)  # operand: after_a_harmless_reduction
    scaled = leaf * norm + mean
    return scaled / wide  # promotion: after_a_harmless_reduction


@drift()
def where_made_from_nothing(leaf, grad, count):
    other = jnp.arange(3.0)  # operand: where_made_from_nothing
    return jnp.where(count > 2, leaf, other)  # promotion: where_made_from_nothing


@drift()
def comes_round_in_a_loop(leaf, grad, count):
    def body(number, carry):
        kept, total = carry
        return leaf, total + kept  # promotion: comes_round_in_a_loop

    start = jnp.zeros(3, F32)  # operand: comes_round_in_a_loop
    return lax.fori_loop(0, 3, body, (jnp.zeros(3, BF16), start))[1]


def multi_steps_inside(updates, params):
    wide = jnp.ones(3, F32)  # operand: multi_steps_inside
    return {"w": updates["w"] * wide}  # promotion: multi_steps_inside


_OPT: Any = optax.MultiSteps(optax.stateless(multi_steps_inside), 2)
CASES["multi_steps_inside"] = Case(_OPT, BF16, False, "bfloat16", "float32", "updates")


def weak_leaf():
    """What makes the first leaf of `weak_init_leaf`."""
    return jnp.asarray(1.0)  # promotion: weak_init_leaf


@drift(leaf=weak_leaf, before="float32 (weak)", after="float32")
def weak_init_leaf(leaf, grad, count):
    return leaf * jnp.ones((), F32)


def marked(name: str, word: str, file: str = __file__) -> tuple[str, int] | None:
    """The file and the line marked with a word for a case of a module."""
    for module in (file, planted_helper.__file__):
        lines = pathlib.Path(module).read_text().splitlines()
        for number, line in enumerate(lines, start=1):
            if re.search(rf"# {word}: {name}\b", line):
                return module, number
    return None


def assert_told(drift: Any, case: Any, name: str, file: str = __file__) -> None:
    """Fails unless an audit told the types and the lines of a case of a module."""
    assert (drift.before, drift.after) == (case.before, case.after)
    assert drift.kind == ("weak_type" if "weak" in case.before + case.after else "dtype")
    for word, found in (("promotion", drift.origin), ("operand", drift.cause)):
        if (word == "operand" or found is None) and not IS_RECORDED:
            continue  # nothing is recorded there: of constants the user is named
        where = found and (found.file, found.line)
        assert where == marked(name, word, file), (word, str(found))
        assert found is None or f"# {word}: {name}" in found.code


RECORDED.close()
