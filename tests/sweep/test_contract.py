"""Every optimizer of the catalogue, guarded, wherever JAX needs stable types."""

import functools
import inspect
import warnings

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest
from jax import lax, tree_util

from dtypeguard import DtypeGuardWarning, guard
from tests.support.dtypes import BF16, F32, I32
from tests.support.helpers import OPTAX, assert_same, needs_x64_scope, set_x64, types
from tests.support.hlo import optimized_hlo
from tests.support.optimizer_sweep.catalog import by_id, entries

DTYPES = {"f32": (F32, F32), "bf16/f32": (BF16, F32)}

pytestmark = [
    pytest.mark.third_party,
    # Optax's L-BFGS and muon warn of float32 written into bfloat16; a rescue is announced.
    pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types"),
    pytest.mark.filterwarnings("ignore::dtypeguard.DtypeGuardWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64"),
]
# The others run with `-m exhaustive`, as in `.ci/run`.
DOZEN = {
    "optax.MultiSteps",
    "optax.adafactor",
    "optax.adam",
    "optax.adamw[mask]",
    "optax.contrib.muon",
    "optax.contrib.prodigy",
    "optax.contrib.schedule_free",
    "optax.fromage",
    "optax.lbfgs",
    "optax.lion",
    "optax.zero_nans",
    "dtypeguard.multi_steps",
    "dtypeguard.prodigy",
}

CHOSEN = [entry for entry in by_id().values() if entry.id in DOZEN]
every_chosen = pytest.mark.parametrize("entry", CHOSEN, ids=lambda entry: entry.id)


def pytest_generate_tests(metafunc):
    """Gives other tests the dozen, and all where long tests run: to find them runs each."""
    names = [name for name in ("entry", "dtypes") if name in metafunc.fixturenames]
    if not names or metafunc.definition.get_closest_marker("parametrize"):
        return
    is_short = metafunc.config.option.markexpr == "not exhaustive"
    cases = []
    for entry in CHOSEN if is_short else entries()[0]:
        values = (entry, DTYPES["f32"])[: len(names)]
        marks = () if entry.id in DOZEN else pytest.mark.exhaustive
        cases.append(pytest.param(*values, id=entry.id, marks=marks))
    for entry in CHOSEN if "dtypes" in names else ():
        cases.append(pytest.param(entry, DTYPES["bf16/f32"], id=f"{entry.id}-bf16"))
    metafunc.parametrize(names, cases)


class Loop:
    """A train step of one optimizer on its inputs, and its first params and state."""

    def __init__(self, opt, inputs):
        self.opt = opt
        self.updates, self.extra_args = inputs.updates, inputs.extra_args
        # Copied, since lookahead is given the same params as its fast and its slow ones.
        params = tree_util.tree_map(jnp.copy, inputs.params)
        self.carry = (params, opt.init(params))

    def update(self, params, state):
        return self.opt.update(self.updates, state, params, **self.extra_args)

    @functools.cached_property
    def traced(self):
        """The step, traced once for all that runs it on the same types."""
        return jax.jit(self.step)

    def step(self, carry):
        params, state = carry
        updates, state = self.update(params, state)
        # As Equinox does, whose `apply_updates` does not cast: p + u must not promote.
        return tree_util.tree_map(
            lambda p, u: p if u is None else p + u, params, updates
        ), state


def guarded(entry, dtypes=DTYPES["f32"]):
    return Loop(guard(entry.build()), entry.inputs(*dtypes))


def in_equinox_scan(loop, kind):
    body = lambda carry, _: (loop.traced(carry), None)
    checkpoints = 2 if kind == "checkpointed" else None
    return eqxi.scan(
        body, loop.carry, jnp.zeros(2, F32), kind=kind, checkpoints=checkpoints
    )[0]


def in_while_loop(loop):
    body = lambda c: (c[0] + I32(1), loop.traced(c[1]))
    return lax.while_loop(lambda c: c[0] < 2, body, (I32(0), loop.carry))[1]


CONTROL_FLOW = {
    "scan": lambda loop: lax.scan(lambda c, _: (loop.traced(c), None), loop.carry, None, 2)[
        0
    ],
    "while_loop": in_while_loop,
    "cond": lambda loop: lax.cond(jnp.asarray(True), loop.traced, lambda c: c, loop.carry),
} | {
    f"equinox, {kind}": functools.partial(in_equinox_scan, kind=kind)
    for kind in ("lax", "checkpointed", "bounded")
}


@every_chosen
def test_control_flow(entry):
    """(params, state) is a carry, and keeps its types; the sweep has every optimizer."""
    with set_x64(True):
        loop = guarded(entry, DTYPES["bf16/f32"])
        for name, run in CONTROL_FLOW.items():
            out = jax.eval_shape(lambda run=run: run(loop))
            assert types(out) == types(loop.carry), name


@every_chosen
def test_what_traces_bare_traces_guarded(entry):
    """Over a batch, with derivatives, and in reverse mode where the bare one does."""
    inputs = entry.inputs(F32, F32)

    def final(wrap, scale):
        loop = Loop(wrap(entry.build()), inputs)
        params = tree_util.tree_map(lambda p: p * scale, inputs.params)
        carry = (params, loop.opt.init(params))
        for _ in range(2):
            carry = loop.traced(carry)
        return sum(jnp.sum(leaf) for leaf in tree_util.tree_leaves(carry[0]))

    one = jnp.ones((), F32)
    bare, wrapped = (functools.partial(final, wrap) for wrap in (lambda opt: opt, guard))
    both = jax.vmap(lambda x: jax.jvp(wrapped, (x,), (x,)))
    assert [out.shape for out in jax.eval_shape(both, jnp.ones(2, F32))] == [(2,), (2,)]
    try:
        assert jax.eval_shape(jax.grad(wrapped), one).dtype == F32
    except ValueError:  # a while_loop has no reverse mode
        with pytest.raises(ValueError, match="Reverse-mode differentiation"):
            jax.eval_shape(jax.grad(bare), one)


def test_donation_from_the_first_step_on(entry):
    """No two leaves of the first carry share a buffer, and each step fills it again."""
    loop = guarded(entry)
    carry = before = loop.carry
    leaves = [leaf for leaf in tree_util.tree_leaves(before) if leaf.size]
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)
    expected = types(carry)
    assert types(jax.eval_shape(loop.traced, carry)) == expected
    if entry.id in DOZEN:
        step = jax.jit(loop.step, donate_argnums=0)
        for _ in range(2):  # warnings are errors: none says that a buffer was not usable
            carry = step(carry)
            assert types(carry) == expected
        assert all(leaf.is_deleted() for leaf in tree_util.tree_leaves(before[0]))
        assert step._cache_size() == 1


def test_optimized_hlo_is_the_bare_one(entry):
    inputs = entry.inputs(F32, F32)
    # From the guarded first state: some bare ones start weakly typed and are stable later.
    bare, wrapped = Loop(entry.build(), inputs), Loop(guard(entry.build()), inputs)
    out = jax.eval_shape(bare.update, *wrapped.carry)[1]
    is_stable = types(out) == types(wrapped.carry[1])
    if OPTAX < (0, 2, 5) and not is_stable:
        pytest.skip("drifts bare before Optax 0.2.5")
    assert is_stable, "not stable bare"
    lowered = [jax.jit(loop.update).lower(*wrapped.carry) for loop in (wrapped, bare)]
    if lowered[0].as_text() != lowered[1].as_text():  # else XLA is given one program
        assert optimized_hlo(wrapped.update, *wrapped.carry) == optimized_hlo(
            bare.update, *wrapped.carry
        )


@needs_x64_scope
def test_blind_to_the_x64_flag(entry, dtypes):
    """The same bits with the flag on, and no 64-bit floating-point value in the step.

    In bfloat16 the sweep has the types of all.
    """
    if entry.id == "optax.fromage" and OPTAX < (0, 2, 8):
        pytest.skip("holds a float64 array, which its factory computes under x64")
    carries, programs, texts = [], [], []
    for x64 in (False, True):
        with set_x64(x64):
            loop = guarded(entry, dtypes)
            carries.append(loop.carry)
            programs.append(jax.jit(loop.step).lower(loop.carry))
            texts.append(programs[-1].as_text())
            assert "f64" not in texts[-1]
    assert_same(*carries)
    if texts[0] == texts[1]:  # one program on one input has one result
        return
    results = []
    for x64, program, carry in zip((False, True), programs, carries):
        with set_x64(x64):
            results.append(program.compile()(carry))
    assert_same(*results)


def test_every_factory_of_optax_is_in_the_catalogue_or_left_out():
    ids = {entry.id.partition("[")[0] for part in entries() for entry in part}
    promised = {
        made.__name__
        for module in (optax, optax.contrib)
        for made in vars(module).values()
        if inspect.isfunction(made)
        and "GradientTransformation" in str(made.__annotations__.get("return"))
    }
    assert len(promised) > 50
    assert promised <= {name.rpartition(".")[2] for name in ids}
    # Of these no annotation tells.
    assert ids >= {"optax.MultiSteps", "optax.scale_by_factored_rms"}


# Before JAX 0.7 the float64 that optimizers compute under x64 cannot be hidden from them.
@pytest.mark.parametrize(
    "x64", [False, pytest.param(True, marks=needs_x64_scope)], ids=["x64_off", "x64_on"]
)
def test_no_guarded_update_needs_a_second_attempt_in_float32(x64):
    with warnings.catch_warnings(), set_x64(x64):
        warnings.simplefilter("error", DtypeGuardWarning)
        for entry in entries()[0]:
            loop = guarded(entry)
            jax.eval_shape(loop.update, *loop.carry)


def test_bare_adam_computes_in_float64():
    """So the test above can fail."""
    entry = by_id()["optax.adam"]
    with set_x64(True):
        bare = Loop(entry.build(), entry.inputs(F32, F32))
        assert "f64" in jax.jit(bare.step).lower(bare.carry).as_text()
