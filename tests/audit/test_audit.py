"""Audits: what is told of the optimizers that are known to drift, and how."""

import json
import re
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest
from helpers import OPTAX
from jax import lax

from dtypeguard import AuditReport, audit, guard
from dtypeguard._leaves.compat import HAS_X64_SCOPE, x64_enabled

pytestmark = pytest.mark.third_party

BF16, F32 = jnp.bfloat16, jnp.float32


def add_one(leaf):
    return leaf + jnp.ones((), leaf.dtype)


def twice(leaf):
    return jnp.concatenate([leaf, leaf])


def struct(dtype, shape=(3,)):
    return {"w": jax.ShapeDtypeStruct(shape, dtype)}


class State(NamedTuple):
    """One leaf."""

    leaf: Any


def one_leaf(leaf, change):
    return optax.GradientTransformation(
        lambda params: State(leaf(params)),
        lambda updates, state, params=None: (updates, State(change(state.leaf))),
    )


def counter(params):
    return jnp.zeros((), jnp.int32)


def test_adam_names_the_moment_update():
    report = audit(optax.adam(1e-3), struct(BF16), updates=struct(F32))
    drift = report.drifts[0]
    assert (drift.path, drift.where, drift.kind) == ("[0].mu['w']", "state", "dtype")
    assert (drift.before, drift.after) == ("bfloat16", "float32")
    assert "update_moment" in drift.origin.function or "lambda" in drift.origin.function
    assert re.search(r"decay\)? \* \(?g|decay \* t", drift.origin.code)
    assert drift.cause is None  # the gradient is an input
    assert drift.origin.file.startswith(optax.__path__[0])
    assert (report.ok, report.compilations) == (False, 2)
    update = report.drifts[-1]
    assert (update.where, update.path, update.origin) == ("updates", "['w']", None)


@pytest.mark.skipif(
    not (0, 1, 9) <= OPTAX <= (0, 2, 3), reason="mended in Optax 0.2.4 and later"
)
def test_prodigy_under_x64_names_the_bias_correction():
    report = audit(optax.contrib.prodigy(), struct(F32), x64=True)
    drifts = [drift for drift in report.drifts if drift.where == "state"]
    assert {drift.path for drift in drifts} == {
        ".grad_sum['w']",
        ".estim_lr",
        ".numerator_weighted",
    }
    for drift in drifts:
        assert (drift.before, drift.after) == ("float32", "float64")
        assert drift.cause.code.startswith("bc = ((1 - beta2")
        assert drift.cause.file == drift.origin.file
    assert any(wide.is_array for wide in report.wide_operations)


@pytest.mark.skipif(OPTAX < (0, 2, 8), reason="its lines are other ones")
def test_text_of_a_report():
    params = {
        "b": jax.ShapeDtypeStruct((2,), F32),
        "w": jax.ShapeDtypeStruct((3,), BF16),
    }
    report = audit(optax.contrib.prodigy(), params)
    text = re.sub(r"py:\d+", "py:N", str(report))
    assert text == (
        "audit: 2 state leaves changed dtype, 1 update would promote a param "
        "in one update.\n"
        "  .estim_lr            bfloat16 -> float32  optax/contrib/_prodigy.py:N\n"
        "  .numerator_weighted  bfloat16 -> float32  optax/contrib/_prodigy.py:N\n"
        "  updates['w']         bfloat16 -> float32  optax/contrib/_prodigy.py:N\n"
        "Wrap the optimizer: dtypeguard.guard(prodigy(...))."
    )
    codes = {drift.path: drift.origin.code for drift in report.drifts}
    assert codes[".estim_lr"] == "estim_lr = jnp.maximum(state.estim_lr, lr_estimate)"
    assert codes[".numerator_weighted"].startswith("numerator_weighted += ")


@pytest.mark.parametrize("x64", [False, True])
def test_what_is_guarded_is_clean(x64):
    for opt in (optax.adam(1e-3), optax.contrib.prodigy(), optax.trace(0.9)):
        report = audit(guard(opt), struct(BF16), updates=struct(F32), x64=x64)
        assert (report.ok, report.compilations) == (True, 1)
        assert report.wide_operations == () or not HAS_X64_SCOPE
        assert str(report).startswith("audit: no leaf changed its type in one update.")


def test_the_flag_is_the_callers():
    before = x64_enabled()
    report = audit(one_leaf(counter, lambda n: n + jnp.sum(n > 0)), struct(F32), x64=True)
    assert [drift.after for drift in report.drifts] == ["int64"]
    assert audit(one_leaf(counter, lambda n: n + jnp.sum(n > 0)), struct(F32)).ok
    assert x64_enabled() is before


def test_wide_operations_are_told_by_size():
    def change(leaf):
        return (leaf.astype(jnp.float64) * 2).astype(F32)  # the planted line

    for shape, is_array in (((), False), ((3,), True)):
        opt = one_leaf(lambda params, shape=shape: jnp.zeros(shape, F32), change)
        report = audit(opt, struct(F32), x64=True)
        assert report.ok
        assert {wide.is_array for wide in report.wide_operations} == {is_array}
        assert all("planted" in wide.origin.code for wide in report.wide_operations)
        assert "2 operations in 64 bits" in str(report)
        # With a 64-bit input there is nothing to wonder at.
        assert audit(opt, struct(jnp.float64), x64=True).wide_operations == ()


@pytest.mark.parametrize(
    ("leaf", "change", "kind", "before", "after"),
    [
        (counter, lambda n: n + 0.5, "dtype", "int32", "float32"),
        (lambda p: jnp.asarray(0), add_one, "weak_type", "int32 (weak)", "int32"),
        (lambda p: 1.0, add_one, "weak_type", "float32 (weak)", "float32"),
        (counter, lambda n: jnp.where(n > 0, 1, 2), "weak_type", "int32", "int32 (weak)"),
        (lambda p: jnp.zeros(1), twice, "shape", "float32[1]", "float32[2]"),
        (counter, lambda n: (n, n), "structure", "int32[]", "(absent)"),
        (counter, lambda n: None, "structure", "int32[]", "(absent)"),
        (lambda p: None, lambda n: jnp.zeros(2), "structure", "(absent)", "float32[2]"),
    ],
)
def test_kinds(leaf, change, kind, before, after):
    report = audit(one_leaf(leaf, change), struct(F32))
    drift = report.drifts[0]
    assert (drift.kind, drift.before, drift.after) == (kind, before, after)
    assert drift.path.startswith(".leaf")
    assert report.compilations == 2
    assert (drift.origin is None) == (kind == "structure")
    assert drift.origin is None or drift.origin.file == __file__


def test_state_that_is_no_array_is_left_alone():
    def update(updates, state, params=None):
        return updates, {**state, "key": jax.random.split(state["key"])[0]}

    opt = optax.GradientTransformation(
        lambda params: {"f": jnp.sin, "key": jax.random.key(0), "none": None, "s": "text"},
        update,
    )
    assert audit(opt, struct(F32)).ok


def test_extra_args():
    def update(updates, state, params=None, *, value, value_fn):
        wide = value * value_fn(params)
        return updates, State(state.leaf * wide)

    opt = optax.GradientTransformationExtraArgs(
        lambda params: State(jnp.zeros((), BF16)), update
    )
    extra_args = {"value": jnp.ones((), BF16), "value_fn": lambda p: jnp.sum(p["w"])}
    assert audit(opt, struct(BF16), extra_args=extra_args).ok
    report = audit(opt, struct(F32), extra_args=extra_args)
    assert [drift.path for drift in report.drifts] == [".leaf"]


WIDE = jnp.ones(3, F32)
MASK = jnp.ones(3, bool)


@pytest.mark.parametrize(
    ("change", "types"),
    [
        (
            lambda m: lax.scan(lambda c, _: (c * WIDE, None), m, None, length=2)[0],
            {"bfloat16[3]", "float32[3]"},
        ),
        (
            lambda m: lax.cond(True, lambda c: c * WIDE, lambda c: c, m),
            {"bfloat16[3]", "float32[3]"},
        ),
        (
            lambda m: lax.while_loop(lambda c: True, lambda c: c * WIDE, m),
            {"bfloat16[3]", "float32[3]"},
        ),
        (lambda m: lax.select(m > 0, m, WIDE), {"bfloat16", "float32"}),
        (lambda m: m + jnp.ones(2), {"(3,)", "(2,)"}),
    ],
    ids=["scan", "cond", "while", "operation", "shapes"],
)
def test_what_does_not_trace(change, types):
    opt = one_leaf(lambda params: jnp.zeros(3, BF16), change)
    report = audit(opt, struct(BF16))
    assert not report.ok
    assert set(report.error.types) == types
    assert report.error.origin.file == __file__
    assert "lambda m: " in report.error.origin.code
    assert report.compilations is None
    lines = str(report).splitlines()
    assert lines[0] == "audit: the update does not trace."
    assert " and ".join(report.error.types) + " disagree" in lines[1]


def test_an_init_that_does_not_trace():
    report = audit(one_leaf(lambda params: 1 / 0, lambda m: m), struct(BF16))
    assert str(report).startswith("audit: the init does not trace.")
    assert report.error.message == "ZeroDivisionError: division by zero"
    assert report.error.types == ()
    assert report.error.origin.file == __file__


def test_wide_operations_of_init_and_complex_ones():
    opt = one_leaf(lambda p: (jnp.zeros((), jnp.complex128) + 1).real.astype(F32), add_one)
    (wide, *_) = audit(opt, struct(F32), x64=True).wide_operations
    assert (wide.type, wide.is_array) == ("complex128[]", False)
    assert "opt = one_leaf(lambda p: (jnp.zeros((), jnp.complex128)" in wide.origin.code
    # A gradient of 64 bits is an input like any other.
    wide = struct(jnp.float64)
    assert audit(opt, struct(F32), updates=wide, x64=True).wide_operations == ()


def test_a_weak_update_promotes_no_param():
    weak = optax.stateless(lambda updates, params: {"w": jnp.full((3,), 0.5)})
    assert audit(weak, struct(BF16)).ok
    of_ints = audit(weak, struct(jnp.int32))
    assert [drift.after for drift in of_ints.drifts] == ["float32"]


def test_many_params_are_watched_in_a_second_trace():
    params = {str(n): jax.ShapeDtypeStruct((), BF16) for n in range(60)}

    def change(leaf):
        rate = jnp.asarray(0.9, F32)  # the operand
        return leaf * rate

    opt = one_leaf(lambda params: jnp.zeros((), BF16), change)
    (drift,) = audit(opt, params).drifts
    assert drift.cause.code.endswith("# the operand")


@pytest.mark.parametrize("opt", [optax.adam, optax.MultiSteps, (1, 2)])
def test_what_is_no_optimizer_is_refused(opt):
    with pytest.raises(TypeError, match="not the function that makes it"):
        audit(opt, struct(F32))


def test_leaves_that_are_no_arrays_are_refused():
    with pytest.raises(TypeError, match=r"(?s)params\['f'\]: .*eqx\.filter\(params"):
        audit(optax.sgd(1), {"f": jnp.sin})
    with pytest.raises(TypeError, match="updates: 'text'"):
        audit(optax.sgd(1), struct(F32), updates="text")


@pytest.mark.parametrize("word", [True, "mean"])
def test_extra_args_that_choose_what_is_traced(word):
    def update(updates, state, params=None, *, how):
        seen.append(how)
        return updates, state

    seen = []
    opt = optax.GradientTransformationExtraArgs(lambda p: (), update)
    assert audit(opt, struct(F32), extra_args={"how": word}).ok
    assert all(how is word for how in seen)


@pytest.mark.parametrize(
    ("change", "kind", "row"),
    [
        (lambda w: {"w": twice(w)}, "shape", "updates['w']  float32[3] -> float32[6]  "),
        (lambda w: {"w": w, "new": w}, "structure", "updates['new']  (absent) -> float32"),
    ],
)
def test_updates_that_are_not_those_of_the_params(change, kind, row):
    opt = optax.stateless(lambda updates, params: change(updates["w"]))
    report = audit(opt, struct(F32))
    (drift,) = report.drifts
    assert (drift.kind, drift.where) == (kind, "updates")
    assert (drift.origin is None) == (kind == "structure")
    text = str(report)
    assert f"audit: 1 update changed {kind} in one update.\n  {row}" in text
    assert "dtypeguard.guard does not mend this: DtypeDriftError: update " in text


def test_updates_that_optax_takes():
    """None, a batch with an axis for the examples, and a shape that broadcasts."""
    keep = optax.identity()
    assert audit(optax.stateless(lambda updates, params: None), struct(F32)).ok
    assert audit(keep, struct(F32), updates=struct(F32, (2, 3))).ok
    assert audit(optax.stateless(lambda u, p: {"w": u["w"][:1]}), struct(F32)).ok
    assert audit(keep, {"w": None}, updates=struct(F32)).ok


def test_the_advice_is_one_that_helps():
    advice = lambda opt, params: str(audit(opt, struct(params))).splitlines()[2:]
    to_float = one_leaf(counter, lambda n: n + 0.5)
    assert advice(to_float, F32)[:2] == [
        "dtypeguard.guard does not mend this: DtypeDriftError: "
        "update returned 1 leaf that cannot be brought back:",
        "  state.leaf  int32[] -> float32[],weak  return jnp.round(x).astype(jnp.int32)",
    ]
    guarded = advice(guard(to_float), F32)
    assert guarded[0].startswith("    state.leaf  int32[] -> float32[],weak  return jnp.r")
    assert guarded[-1] == "dtypeguard.guard does not mend this."
    divided = one_leaf(counter, lambda n: 1 / 0)
    assert advice(divided, F32)[-1] == "dtypeguard.guard does not mend this."
    select = one_leaf(lambda p: jnp.zeros(3, BF16), lambda m: lax.select(m > 0, m, WIDE))
    assert advice(select, F32)[-1] == "dtypeguard.guard does not mend this."
    to_key = one_leaf(counter, lambda n: jax.random.key(0))
    assert "state.leaf  int32[] -> key<fry>[]  return an array" in advice(to_key, F32)[1]
    to_int = one_leaf(lambda p: jnp.zeros((), bool), lambda b: b * 1)
    assert advice(to_int, F32) == ["Wrap the optimizer: dtypeguard.guard(one_leaf(...))."]
    asks = optax.GradientTransformationExtraArgs(lambda p: (), lambda u, s, p, *, loss: 0)
    wants = "Give it what it asks for: dtypeguard.audit(..., extra_args={...})."
    assert advice(asks, F32)[-1] == advice(optax.chain(asks), F32)[-1] == wants
    rescued = optax.stateless(lambda u, p: {"w": lax.select(MASK, u["w"], WIDE)})
    assert "disagree" in str(audit(rescued, struct(BF16)))
    assert advice(rescued, BF16)[-1].startswith("Wrap the optimizer: dtypeguard.guard(")


def test_json_markdown_and_html():
    opt = one_leaf(lambda p: jnp.zeros((), BF16), lambda m: m * WIDE[0])  # <planted> | &
    report = audit(opt, struct(BF16))
    read = json.loads(report.to_json())
    assert read["ok"] is False
    (drift,) = read["drifts"]
    assert drift["path"] == ".leaf"
    assert drift["origin"]["file"] == __file__
    assert drift["origin"]["code"].endswith("# <planted> | &")
    markdown = report.to_markdown()
    assert "| leaf | was | is | origin | forced by |" in markdown
    assert "<planted> \\| &`" in markdown
    page = report.to_html()
    assert page.startswith("<!doctype html>")
    assert "# &lt;planted&gt; | &amp;" in page
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"https?://|<planted>", page)
    assert json.loads(AuditReport().to_json())["ok"] is True


def test_advice_of_several_lines_stays_in_lines():
    report = audit(one_leaf(counter, lambda n: n + 0.5), struct(F32))
    first, row, *_ = report.advice.splitlines()
    assert f"{first}\n\n```text\n{row}\n" in report.to_markdown()
    assert f'<p class="lines">{first}\n{row.replace(">", "&gt;")}\n' in report.to_html()
    assert ".lines { white-space: pre-wrap; }" in report.to_html()


def test_a_thousand_leaves_in_seconds():
    params = {str(n): jax.ShapeDtypeStruct((4, 4), BF16) for n in range(1000)}
    grads = {str(n): jax.ShapeDtypeStruct((4, 4), F32) for n in range(1000)}
    start = time.process_time()  # whatever else runs here
    report = audit(optax.adam(1e-3), params, updates=grads)
    assert len(report.drifts) >= 2000
    assert time.process_time() - start < 30  # about 2 where nothing else runs


def test_ten_billion_parameters_without_allocating_them():
    params = {str(n): jax.ShapeDtypeStruct((10**5, 10**4), F32) for n in range(10)}
    before = len(jax.live_arrays())
    assert audit(optax.adamw(1e-3), params).ok
    assert all(array.size < 10**6 for array in jax.live_arrays()[before:])
