"""Each kind of drift and its line, the line that forced it, and one beyond its trace."""

import collections
import importlib
import inspect
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from dtypeguard import audit, explain
from tests.support import planted, planted_steps
from tests.support.advice import note_on, raised
from tests.support.dtypes import BF16, F32
from tests.support.helpers import needs_record
from tests.support.one_leaf import counter, one_leaf, struct

pytestmark = pytest.mark.third_party


@pytest.mark.parametrize("name", planted.CASES)
def test_an_optimizer(name):
    case = planted.CASES[name]
    report = audit(case.opt, struct(BF16), updates=struct(case.grads), x64=case.x64)
    if name == "multi_steps_inside" and report.error:
        # Before Optax 0.2.5 the branches of its own cond differ then.
        assert sorted(report.error.types) == ["bfloat16[3]", "float32[3]"]
        return
    assert report.error is None
    of_case = ".leaf" if case.where == "state" else "['w']"
    # Up to Optax 0.2.6 the accumulator of MultiSteps drifts by itself.
    drifts = [d for d in report.drifts if d.where == case.where]
    (drift,) = [d for d in drifts if d.path.endswith(of_case)]
    planted.assert_told(drift, case, name)


@pytest.mark.parametrize("name", planted_steps.CASES)
def test_a_step(name):
    case = planted_steps.CASES[name]
    report = audit(case.step, *case.args, **case.options)
    assert (report.error, report.compilations) == (None, 2)
    (drift,) = report.drifts
    assert (drift.path, drift.where) == (case.path, "carry")
    planted_steps.assert_told(drift, case, name)


def test_a_trace_that_jax_kept_is_not_taken_for_the_callers():
    """`jnp.where` is jitted in JAX: its equations are those of who called it first."""
    choose = lambda c, x, y: jnp.where(c > 2, x, y)
    jax.make_jaxpr(choose)(jnp.int32(0), jnp.zeros(3, BF16), jnp.zeros(3, F32))
    test_an_optimizer("where_made_from_nothing")


@jax.jit
def kept(x):
    rate = jnp.asarray(0.5, F32)  # the maker
    moved = x + x
    return moved * rate  # the user


@needs_record
def test_a_trace_that_jax_kept_hides_no_maker():
    pytest.importorskip("jax.experimental.xla_metadata")
    for _ in range(3):
        (drift,) = audit(lambda x: kept(x), planted_steps.struct(BF16)).drifts
        assert drift.origin.code.endswith("# the user")
        assert drift.cause.code.endswith("# the maker")
    x = np.ones(3, BF16)
    note = note_on(lambda: jax.lax.scan(lambda x, _: (kept(x), _), x, None, 2))
    assert "# the maker" in note


@needs_record
def test_a_module_that_was_edited_and_reloaded(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "edited_and_reloaded.py"
    source = "import numpy as np\nRATE = np.float32(2)\ndef step(x):\n    return x * RATE\n"
    path.write_text(source)
    with explain():
        module = importlib.import_module(path.stem)
    path.write_text(f"# A comment.\n\n{source}# More.\n")
    os.utime(path, (1, 1))  # the bytecode is that of the source of another time
    with explain():
        importlib.reload(module)
    (drift,) = audit(sys.modules[path.stem].step, planted_steps.struct(BF16)).drifts
    assert drift.origin.code == "return x * RATE"
    assert (drift.cause.code, drift.cause.line) == ("RATE = np.float32(2)", 4)


def test_of_a_conversion_that_a_function_makes_alone_later_values_are_no_cause():
    @jax.jit
    def step(count):
        grown = jnp.exp(count)  # of itself
        return grown * 2.0 + np.float32(0.9)

    (drift,) = audit(step, planted_steps.struct(jnp.int32)).drifts
    assert drift.origin.code.endswith("# of itself")
    assert drift.cause is None


def test_a_mask_of_a_leaf_is_to_blame_only_if_nothing_else_is():
    def step(x):
        y = x * np.ones(3, np.float32)  # widened
        return y * (x > 0).astype(y.dtype)

    (drift,) = audit(step, planted_steps.struct(BF16)).drifts
    assert drift.origin.code.endswith("# widened")


HALF = jnp.ones(3, BF16)
add_half = jax.jit(lambda x: lax.add(x, HALF))


def looped(x):
    return lax.fori_loop(0, 2, lambda n, carry: add_half(carry), x)


@pytest.mark.parametrize("call", [add_half, jax.jit(add_half), looped, jax.jit(looped)])
def test_an_argument_of_an_inner_function_is_followed_outside(call):
    """By the equations of the outer traces, so that no record is needed."""

    def step(x):
        wide = x.astype(F32)  # the line
        return call(wide * 2)

    rows = raised(lambda: jax.jit(step)(HALF)).dtypeguard_rows
    codes = [row.origin.code for row in rows if row.origin]
    assert "wide = x.astype(F32)  # the line" in codes


def add_one(leaf):
    return leaf + jnp.ones((), leaf.dtype)


def twice(leaf):
    return jnp.concatenate([leaf, leaf])


@pytest.mark.parametrize(
    ("leaf", "change", "kind", "before", "after"),
    [
        (counter, lambda n: n + 0.5, "dtype", "int32", "float32"),
        (counter, lambda n: jnp.float32(0), "dtype", "int32", "float32"),  # a literal
        (lambda p: jnp.asarray(0), add_one, "weak_type", "int32 (weak)", "int32"),
        (lambda p: 1.0, add_one, "weak_type", "float32 (weak)", "float32"),
        (counter, lambda n: jnp.where(n > 0, 1, 2), "weak_type", "int32", "int32 (weak)"),
        (lambda p: jnp.zeros(1), twice, "shape", "float32[1]", "float32[2]"),
        (counter, lambda n: (n, n), "structure", "int32[]", "(absent)"),
        (counter, lambda n: None, "structure", "int32[]", "(absent)"),
        (lambda p: None, lambda n: jnp.zeros(2), "structure", "(absent)", "float32[2]"),
    ],
)
def test_a_leaf_of_a_state(leaf, change, kind, before, after):
    report = audit(one_leaf(leaf, change), struct(F32))
    drift = report.drifts[0]
    assert (drift.kind, drift.before, drift.after) == (kind, before, after)
    assert drift.path.startswith(".leaf")
    assert report.compilations == 2
    is_number = before == "float32 (weak)"  # for which nothing may be recorded
    assert is_number or (drift.origin is None) == (kind == "structure")
    holder = inspect.getfile(one_leaf)
    assert drift.origin is None or drift.origin.file in (__file__, holder)


def test_a_shape_and_a_structure_of_a_carry():
    (drift,) = audit(
        lambda state: {"w": twice(state["w"])}, {"w": jnp.zeros(3, BF16)}
    ).drifts
    assert (drift.path, drift.kind) == ("state['w']", "shape")
    assert (drift.before, drift.after) == ("bfloat16[3]", "bfloat16[6]")
    (drift,) = audit(lambda state: {**state, "new": 1}, {"old": 2}).drifts
    assert (drift.path, drift.kind) == ("state['new']", "structure")


@pytest.mark.parametrize(
    ("change", "kind", "row"),
    [
        (lambda w: {"w": twice(w)}, "shape", "updates['w']  float32[3] -> float32[6]  "),
        (lambda w: {"w": w, "new": w}, "structure", "updates['new']  (absent) -> float32"),
    ],
)
def test_an_update_that_does_not_fit_its_param(change, kind, row):
    report = audit(
        optax.stateless(lambda updates, params: change(updates["w"])), struct(F32)
    )
    (drift,) = report.drifts
    assert (drift.kind, drift.where) == (kind, "updates")
    assert (drift.origin is None) == (kind == "structure")
    text = str(report)
    assert f"audit: 1 update changed {kind} in one update.\n  {row}" in text
    assert "dtypeguard.guard does not fix this: DtypeDriftError: update " in text


def test_updates_that_optax_takes():
    """None, a batch with an axis for the examples, and a shape that broadcasts."""
    keep = optax.identity()
    assert audit(optax.stateless(lambda updates, params: None), struct(F32)).ok
    assert audit(keep, struct(F32), updates=struct(F32, (2, 3))).ok
    assert audit(optax.stateless(lambda u, p: {"w": u["w"][:1]}), struct(F32)).ok
    assert audit(keep, {"w": None}, updates=struct(F32)).ok


def test_a_weak_update_promotes_no_param():
    weak = optax.stateless(lambda updates, params: {"w": jnp.full((3,), 0.5)})
    assert audit(weak, struct(BF16)).ok
    of_ints = audit(weak, struct(jnp.int32))
    assert [drift.after for drift in of_ints.drifts] == ["float32"]


@pytest.mark.parametrize(
    ("of", "path", "after"),
    [
        (lambda u: {"w": u["w"]}, "['b'][0]", "(absent)"),
        (lambda u: {**u, "b": (optax.MaskedNode(), u["b"][1])}, "['b'][0]", "(absent)"),
        (lambda u: {**u, "b": [*u["b"]]}, "", "PyTreeDef({'b': [*, *], 'w': *})"),
        (lambda u: collections.OrderedDict(u), "", "OrderedDict"),
    ],
    ids=["missing", "masked", "list", "OrderedDict"],
)
def test_updates_of_another_tree_than_the_params(of, path, after):
    """They cannot be added: they have the paths of the params, or some of them."""
    leaf = jax.ShapeDtypeStruct((3,), F32)
    params = {"w": leaf, "b": (leaf, leaf)}
    drift, *_ = audit(optax.stateless(lambda updates, _: of(updates)), params).drifts
    assert (drift.where, drift.kind, drift.path) == ("updates", "structure", path)
    assert after in drift.after
    with pytest.raises(
        (ValueError, TypeError), match=r"structure|operand|[Mm]ismatch|Expected"
    ):
        jax.eval_shape(lambda x: optax.apply_updates(x, of(x)), params)


TABLE = jnp.ones(3)


def test_a_loop_that_starts_from_a_constant_is_forced_by_its_line():
    step = lambda c: jax.lax.fori_loop(0, 2, lambda i, x: x * 2, TABLE)
    (drift,) = audit(step, TABLE.astype(BF16)).drifts
    assert drift.cause
