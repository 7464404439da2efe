"""A plan as a file."""

import jax.numpy as jnp
import pytest

from dtypeguard import Plan
from dtypeguard._autocast.plan import PlanEntry

_BFLOAT16, _FLOAT32 = jnp.dtype("bfloat16"), jnp.dtype("float32")
_PLAN = Plan(
    _BFLOAT16,
    "all",
    (
        PlanEntry("model.py:norm", dtype=_FLOAT32, error=0.031, share=0.012),
        PlanEntry("model.py:Attention.__call__", "jax.nn.softmax(scores)", dtype=_FLOAT32),
        PlanEntry("model.py:f", "d['a: b'] @ x", "block_0/mlp", dtype=jnp.dtype("float16")),
    ),
    loss_scale=1024.0,
    error=0.011,
    held_out=0.012,
    tolerance=0.02,
    share=0.93,
    measured="grad(autocast(loss))",
)


def test_round_trip(tmp_path):
    path = tmp_path / "train.plan"
    _PLAN.save(path)
    loaded = Plan.load(path)
    assert loaded == _PLAN
    assert (loaded.error, loaded.held_out, loaded.share) == (0.011, 0.012, 0.93)
    assert loaded.entries[0].error is None
    text = path.read_text()
    assert (
        '# without it 3.1% off, makes 1.2% of the work wide\n"model.py:norm" = "float32"\n'
    ) in text
    assert '[scope."block_0/mlp"]\n"model.py:f: d[\'a: b\'] @ x" = "float16"' in text


_HEAD = "version = 1\nnarrow = 'float16'\n"
_NUMBER = "Write a number from 0 up, or take the line out"
_BAD = {
    "no TOML": ("version = ", "is no plan that can be read"),
    "version": ("version = 2", "has version 2, and this dtypeguard reads version 1"),
    "narrow": ("version = 1\nnarrow = 'int8'", "Write one of bfloat16, float16"),
    "default": (f"{_HEAD}default = 'some'", "Write one of products, all"),
    "key": (f"{_HEAD}[entrys]", "bad.plan is no plan .* argument 'entrys'"),
    "dtype": (f"{_HEAD}[entries]\n'a.py:f' = 'int32'", "Write one of float32, bfloat16"),
    "entry": (f"{_HEAD}[entries]\n'a.py' = 'float32'", "Write a function of a file"),
    "expression of no function": (
        f"{_HEAD}[entries]\n'a.py:jnp.exp(x)' = 'float32'",
        r'has the entry "a.py:jnp.exp\(x\)". Write a function of a file',
    ),
    "scope": (f"{_HEAD}scope = 'layer0'", "is no plan that can be read"),
    "no number": (f"{_HEAD}error = 'a'", f"bad.plan: the plan has error = 'a'. {_NUMBER}"),
    "nan": (
        f"{_HEAD}tolerance = nan",
        f"bad.plan: .* tolerance = nan. {_NUMBER}",
    ),
    "negative": (f"{_HEAD}tolerance = -0.1", f"has tolerance = -0.1. {_NUMBER}"),
    "minus infinity": (f"{_HEAD}error = -inf", f"has error = -inf. {_NUMBER}"),
}


@pytest.mark.parametrize(("text", "message"), _BAD.values(), ids=_BAD)
def test_bad_text(tmp_path, text, message):
    path = tmp_path / "bad.plan"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Plan.load(path)


def test_no_such_file(tmp_path):
    with pytest.raises(
        ValueError, match=r"does not exist. `dtypeguard precision FILE.py:FUNCTION"
    ):
        Plan.load(tmp_path / "no.plan")


def test_a_plan_as_an_editor_may_write_it(tmp_path):
    path = tmp_path / "edited.plan"
    head = '\ufeffversion = 1\nnarrow = \'float16\'\nmeasured = """\n[a\n"""\n'
    entry = '[entries]\n"a.py: f :  jnp.exp( x )" = """\\\nfloat32"""\n'
    path.write_text(head + entry, "utf-8")
    (entry,) = Plan.load(path).entries
    assert (entry.place, entry.expression) == ("a.py:f", "jnp.exp( x )")
