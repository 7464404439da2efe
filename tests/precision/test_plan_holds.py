"""A plan holds over refactors; over other edits it says what no longer matches."""

import pytest

from dtypeguard._precision.curve import check_call
from dtypeguard._precision.planned import PlannedInputs
from dtypeguard.testing import check_precision
from tests.support.helpers import needs_numbers
from tests.support.trained import TEXT, written

pytestmark = needs_numbers

PLAN = """
version = 1
narrow = "bfloat16"
default = "all"
tolerance = 0.03

[entries]
"train.py:norm" = "float32"
"train.py:loss: jax.nn.log_softmax(scores)" = "float32"
# without it 14% off
"train.py:step: p - 0.1 * g" = "float32"
"""
_LOSS = TEXT[TEXT.index("def loss") : TEXT.index("def step")]
REFACTORS = {
    "a local name in another line": [
        ("value, grads", "cost, grads"),
        (", value", ", cost"),
    ],
    "functions in another order": [(_LOSS, ""), ("def norm", _LOSS + "def norm")],
    "line breaks and brackets": [
        ("[p - 0.1 * g for", "[\n        (p\n         - (0.1 * g)) for"),
        ("jax.nn.log_softmax(scores)", "jax.nn.log_softmax(\n        scores\n    )"),
    ],
    "jit inside": [("def loss", "@jax.jit\ndef loss"), ("def norm", "@jax.jit\ndef norm")],
    "another rate": [("0.1 * g", "0.2 * g")],
}
_RETURN = "    return [p - 0.1 * g for p, g in zip(params, grads)]"
EDITS = {
    "a function of the plan renamed": (
        [("norm(", "normalized(")],
        r'"?train.py:norm"?: .*the nearest there is "train.py:normalized"',
    ),
    "a variable in its expression renamed": (
        [("for p, g in zip", "for p, d in zip"), ("0.1 * g", "0.1 * d")],
        r"train.py:step: p - 0.1 \* g: the nearest there is .*p - 0.1 \* d",
    ),
    "another function called": (
        [("jax.nn.log_softmax(scores)", "scores - jax.nn.logsumexp(scores, 1)[:, None]")],
        r"train.py:loss: jax.nn.log_softmax\(scores\): the nearest there is .*logsumexp",
    ),
    "its line in another function": (
        [
            (f"{_RETURN}, value", "    return descend(params, grads), value"),
            ("def norm", f"def descend(params, grads):\n{_RETURN}\n\n\ndef norm"),
        ],
        r'train.py:step: p - 0.1 \* g: .*"train.py:descend',
    ),
}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "train.plan"
    file.write_text(PLAN)
    return file


@pytest.mark.parametrize("edits", REFACTORS.values(), ids=REFACTORS)
def test_a_refactored_program_is_as_the_plan_says(edits, path, tmp_path):
    module = written(tmp_path, *edits)
    check_precision(module.step, *module.inputs(), plan=path)


@pytest.mark.parametrize(("edits", "message"), EDITS.values(), ids=EDITS)
def test_an_edit_of_what_it_names_is_told(edits, message, path, tmp_path):
    module = written(tmp_path, *edits)
    with pytest.raises(ValueError, match=r"of the plan match nothing") as raised:
        check_precision(module.step, *module.inputs(), plan=path)
    assert raised.match(message)


def test_a_check_that_fails_names_error_tolerance_and_lines(path, tmp_path):
    module = written(tmp_path)
    with pytest.raises(AssertionError, match=r"off, not within 0.01%") as raised:
        check_precision(module.step, *module.inputs(), plan=path, max_error=1e-4)
    worst = str(raised.value).partition("these lines lose most alone")[2]
    assert "train.py:forward: jnp.tanh(norm(x) @ w)" in worst
    assert "p - 0.1 * g" not in worst


def test_a_check_names_no_line_that_it_never_ran(path, tmp_path):
    module = written(tmp_path)
    inputs = PlannedInputs(budget=1)
    found = check_call(module.step, module.inputs(), {}, path, 1e-4, inputs, lambda _: None)
    assert sum("%  train.py" in note for note in found.notes) == 1


def test_what_is_held_out_is_within_it_too(path, tmp_path):
    module = written(tmp_path)
    check_precision(module.step, *module.inputs(), plan=path, held_out=[module.unseen()])


def test_wrong_arguments_are_told(path, tmp_path):
    module = written(tmp_path)
    with pytest.raises(ValueError, match=r"none.plan does not exist"):
        check_precision(module.step, *module.inputs(), plan=tmp_path / "none.plan")
    with pytest.raises(TypeError, match="check_precision got held_out=3"):
        check_precision(module.step, *module.inputs(), plan=path, held_out=3)
