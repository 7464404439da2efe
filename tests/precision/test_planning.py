"""The search for a plan: a curve whose figures are from runs, and the row that it marks."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtypeguard import Plan, audit_precision, autocast
from dtypeguard._precision.curve import plan_call
from dtypeguard._precision.planned import PlannedInputs
from dtypeguard.testing import check_precision
from tests.support import clipped
from tests.support.dtypes import BF16, F16
from tests.support.helpers import need, needs_numbers, normal
from tests.support.trained import written

pytestmark = needs_numbers
A = normal(0, 8, 8)


def searched(f, args, tolerance, narrow=BF16, **more):
    return audit_precision(
        f, *args, narrow=narrow, tolerance=tolerance, seconds=None, **more
    ).search


def error_of(module, plan, args):
    """By hand: the step by the plan beside the step; of params, the update counts."""
    made = jax.tree.leaves(jax.jit(autocast(module.step, plan))(*args))
    exact = jax.tree.leaves(module.step(*args))
    before = [*jax.tree.leaves(args[0]), 0.0]
    norm = lambda x: float(jnp.linalg.norm(jnp.ravel(x)))
    parts = [norm(m - e) / norm(e - b) for m, e, b in zip(made, exact, before)]
    return float(jnp.sqrt(jnp.mean(jnp.square(jnp.asarray(parts)))))


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return written(tmp_path_factory.mktemp("plan"))


@pytest.fixture(scope="module")
def report(module):
    return audit_precision(
        module.step,
        *module.inputs(),
        narrow=BF16,
        tolerance=0.0025,
        held_out=[module.unseen()],
        seconds=None,
    )


def test_each_row_of_the_curve_is_what_it_says_by_hand_as_well(report, module):
    curve = report.search.curve
    assert len(curve) == len(report.search.rows()) - 1 <= 8
    for plan in curve:
        assert error_of(module, plan, module.inputs()) == pytest.approx(
            plan.error, rel=0.05, abs=1e-5
        )
    all_narrow, bare, *_, all_wide = curve
    assert (all_narrow.default, all_narrow.entries) == ("all", ())
    assert (bare.default, bare.entries, bare.share) == ("products", (), 1)
    assert all_wide.share == 0
    assert all_wide.error < 1e-5 < bare.error < all_narrow.error


def test_the_plan_is_the_row_with_most_narrow_within_the_tolerance(report, module):
    plan, curve = report.plan, report.search.curve
    assert any(each is plan for each in curve)
    assert plan.error <= plan.tolerance == 0.0025
    assert not any(x.error <= 0.0025 and x.share > plan.share for x in curve)
    assert plan.held_out == pytest.approx(plan.error, rel=0.5)
    assert error_of(module, plan, module.unseen()) == pytest.approx(plan.held_out, rel=0.05)
    assert sum(x.share for x in plan.entries) == pytest.approx(1 - plan.share)


def test_no_entry_can_be_dropped(report, module, tmp_path):
    plan = report.plan
    assert plan.entries
    for entry in plan.entries:
        rest = tuple(each for each in plan.entries if each is not entry)
        assert entry.error > plan.tolerance
        dataclasses.replace(plan, entries=rest).save(tmp_path / "less.plan")
        with pytest.raises(AssertionError, match=r"not within 0\.25%") as failed:
            check_precision(module.step, *module.inputs(), plan=tmp_path / "less.plan")
        assert str(entry) in str(failed.value)


def test_an_entry_of_a_function_inside_another_ones_is_needless():
    """What `f` names is wide without the entry of `f.inner` as well."""

    def f(w, x):
        def inner(x):
            return x @ w

        return inner(x) @ w

    found = searched(f, (A, normal(1, 8, 8)), 1e-6)
    errors = {entry.place.rpartition(".")[2]: entry.error for entry in found.plan.entries}
    assert errors["inner"] < 1e-6 < errors["f"]


def test_the_report_has_the_plan_and_survives_pickling(report, tmp_path):
    assert not report.fix
    assert "By the plan below it is" in str(report)
    assert pickle.loads(pickle.dumps(report)).plan == report.plan
    report.plan.save(tmp_path / "train.plan")
    assert Plan.load(tmp_path / "train.plan") == report.plan
    assert "For dtypeguard.autocast, a plan: " in str(report)


def test_an_update_that_rounding_takes_away_is_no_plan(report):
    """New params are nearly right in bfloat16, but their updates are not."""
    text = str(report.search)
    assert "For [0][0], [0][1], [0][2], the error is that of the update" in text
    assert report.plan.default == "products"  # the updates are as written


def route(w, x):
    return x @ w


def routed(w, x):
    """Experts of one layer, of which a small product chooses one."""
    chosen = jnp.argmax(route(w["route"], x), -1)
    made = jnp.stack([jnp.tanh(x @ each) for each in w["experts"]])
    return made[chosen, jnp.arange(len(x))]


def test_without_a_tolerance_the_best_cheap_row_is_the_plan():
    keys = jax.random.split(jax.random.key(0), 3)
    first, experts, x = map(jax.random.normal, keys, ((16, 8), (8, 16, 32), (512, 16)))
    first = first[:, :1] + first / 16  # choices that are near each other, which flip
    args = {"route": first, "experts": experts}, x
    found = plan_call(routed, args, {}, BF16, None, PlannedInputs(), lambda text: None)
    (entry,) = found.plan.entries
    assert entry.place.endswith("test_planning.py:route")
    assert entry.expression == ""
    assert 0.95 < found.plan.share < 1
    bare = next(x for x in found.curve if x.default == "products" and not x.entries)
    assert found.plan.error < bare.error / 2


def test_no_row_is_run_with_more_wide_than_is_needed(report):
    *rows, all_wide = report.search.curve
    assert all_wide.share == 0
    assert min(row.share for row in rows) == report.plan.share


def test_a_plan_is_right_for_all_of_several_inputs(module):
    params, x, y = module.inputs()
    hard = (params, x + 30, y)
    one = searched(module.step, (params, x, y), 0.01)
    both = searched(module.step, (params, x, y), 0.01, also=[hard])
    assert both.plan.error <= 0.01
    assert one.curve[0].error < both.curve[0].error


def test_the_runs_are_at_most_as_many_as_allowed(module):
    found = searched(module.step, module.inputs(), 0.001, budget=2)
    assert "runs were spent" in str(found)
    assert found.plan.entries
    assert "inf%" not in found.plan.text()
    assert searched(module.step, module.inputs(), 0.001, budget=0) is None


def test_float16_whose_gradients_leave_its_range_has_the_loss_scale():
    x, y = normal(1, 32, 8), normal(2, 32, 4)
    loss = lambda w: 1e-7 * jnp.mean((jnp.tanh(x @ w) - y) ** 2)
    found = searched(jax.grad(loss), (normal(0, 8, 4),), 0.02, narrow=F16)
    assert (found.plan.loss_scale or 0) > 1
    assert found.is_within
    assert "loss_scale = " in found.plan.text()
    assert any("loss multiplied by" in note for note in found.notes)


@pytest.mark.parametrize("other", [(A[0],), (), (A, A)])
def test_other_inputs_of_another_form_are_refused(other):
    with pytest.raises(TypeError, match=r"Give a plan inputs of the same types and shapes"):
        searched(lambda x: x @ x, (A,), 0.1, also=[other])


def test_what_xla_leaves_out_counts_as_well():
    args = clipped.inputs()
    gradient = jax.grad(clipped.clipped)
    found = searched(gradient, args, 0.02)
    made = jax.jit(autocast(gradient, found.plan))(*args)
    norm = jnp.linalg.norm
    assert found.is_within
    assert max(norm(a - b) / norm(b) for a, b in zip(made, gradient(*args))) < 0.025


def test_a_program_that_raises_in_narrow_types_is_infinitely_far_off():
    equinox = need("equinox")

    def f(w, x):
        z = x @ w
        off = jnp.abs(jnp.sum(z, 0) - jnp.sum(x, 0) @ w)
        made = equinox.error_if(jnp.tanh(x @ w), jnp.any(off > 1e-2), "not conserved")
        return made, x > 9, jax.random.key(0)

    args = A, normal(1, 16, 8)
    found = searched(f, args, 0.02)
    assert found.is_within
    assert any(entry.error == np.inf for entry in found.plan.entries)
    report = audit_precision(f, *args, narrow=BF16)
    assert report.error == np.inf
    assert report.headline == "in bfloat16 the program raises, and does not in float32."
    assert report.fixed.error < 0.02


def test_what_is_held_out_counts_for_a_search_as_for_a_check(tmp_path):
    f = lambda w, x: x @ w
    w, x = normal(0, 16, 16), normal(1, 32, 16)
    w = w.at[1].set(w[0])
    far = w, x.at[:, 0].add(300.0).at[:, 1].add(-300.0)  # which cancel
    assert searched(f, (w, x), 0.01).is_within
    found = searched(f, (w, x), 0.01, held_out=[far])
    assert found.plan.error <= 0.01 < found.plan.held_out
    assert not found.is_within
    assert ", not within 1%." in found.headline
    found.plan.save(tmp_path / "far.plan")
    with pytest.raises(AssertionError, match=r"held out\), not within 1%"):
        check_precision(f, w, x, plan=tmp_path / "far.plan", held_out=[far])


def test_what_moves_a_wide_product_rounds_nothing():
    def f(w, x):
        first = x @ w
        second = x @ w.T
        small = x @ w[::-1]
        return first.T + second.T + 1e-3 * small.T

    assert searched(f, (A, normal(1, 16, 8)), 1e-4).plan.share == pytest.approx(1 / 3)


def test_a_plan_with_nothing_narrow_is_no_success():
    found = searched(lambda w, x: x @ w, (A, normal(1, 8, 8)), 1e-6)
    assert found.plan.share == 0
    assert found.headline.startswith("plan: 0% of the work in bfloat16")
    assert not found.is_of_use
