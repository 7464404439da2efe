"""Each kind of drift, of a state, of updates and of a carry."""

import collections
import inspect

import jax
import jax.numpy as jnp
import optax
import pytest

from dtypeguard import audit
from tests.support.dtypes import BF16, F32
from tests.support.one_leaf import counter, one_leaf, struct

pytestmark = pytest.mark.third_party


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
