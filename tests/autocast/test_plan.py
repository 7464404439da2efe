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
    assert Plan.load(path) == _PLAN
    text = path.read_text()
    assert (
        "# without it 3.1% off, makes 1.2% of the multiply-adds "
        'wide\n"model.py:norm" = "float32"\n'
    ) in text
    assert '[scope."block_0/mlp"]\n"model.py:f: d[\'a: b\'] @ x" = "float16"' in text


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float32, "bfloat", None])
def test_no_narrow_dtype(dtype):
    with pytest.raises(TypeError, match=r"no narrow floating dtype. Write jnp.bfloat16"):
        Plan(dtype)


_BAD = {
    "no TOML": ("version = ", "is no plan that can be read"),
    "version": ("version = 2", "has version 2, and this dtypeguard reads version 1"),
    "narrow": ("version = 1\nnarrow = 'int8'", "Write one of bfloat16, float16"),
    "default": (
        "version = 1\nnarrow = 'float16'\ndefault = 'some'",
        "Write one of products, all",
    ),
    "key": ("version = 1\nnarrow = 'float16'\n[entrys]", "has 'entrys', which is no part"),
    "dtype": (
        "version = 1\nnarrow = 'float16'\n[entries]\n'a.py:f' = 'int32'",
        "Write one of float32, bfloat16",
    ),
    "entry": (
        "version = 1\nnarrow = 'float16'\n[entries]\n'a.py' = 'float32'",
        "Write a function of a file",
    ),
    "scope": (
        "version = 1\nnarrow = 'float16'\nscope = 'layer0'",
        r"has scope = 'layer0', .*Write \[entries\], or \[scope.NAME\]",
    ),
    "expression of no function": (
        "version = 1\nnarrow = 'float16'\n[entries]\n'a.py:jnp.exp(x)' = 'float32'",
        r'has the entry "a.py:jnp.exp\(x\)". Write a function of a file',
    ),
    "number": (
        "version = 1\nnarrow = 'float16'\nerror = 'a'",
        "could not convert string to float: 'a'",
    ),
}


@pytest.mark.parametrize(("text", "message"), _BAD.values(), ids=_BAD)
def test_bad_text(tmp_path, text, message):
    path = tmp_path / "bad.plan"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Plan.load(path)


@pytest.mark.parametrize("key", ["a.py:f:jnp.exp(x)", "a.py: f :  jnp.exp( x )"])
def test_spaces_around_the_colons_of_an_entry(tmp_path, key):
    path = tmp_path / "edited.plan"
    path.write_text(f"version = 1\nnarrow = 'float16'\n[entries]\n{key!r} = 'float32'\n")
    (entry,) = Plan.load(path).entries
    assert entry.place == "a.py:f"
    assert entry.expression.replace(" ", "") == "jnp.exp(x)"


def test_no_such_file(tmp_path):
    with pytest.raises(
        ValueError, match=r"does not exist. `dtypeguard precision FILE.py:FUNCTION"
    ):
        Plan.load(tmp_path / "no.plan")


def test_a_plan_as_an_editor_may_write_it(tmp_path):
    path = tmp_path / "edited.plan"
    head = '\ufeffversion = 1\nnarrow = \'float16\'\nmeasured = """\n[a\n"""\n'
    path.write_text(head + '[entries]\n"a.py:f" = """\\\nfloat32"""\n', "utf-8")
    assert [entry.place for entry in Plan.load(path).entries] == ["a.py:f"]


def test_figures_are_read_again_as_far_as_they_are_of_the_plan(tmp_path):
    _PLAN.save(tmp_path / "train.plan")
    loaded = Plan.load(tmp_path / "train.plan")
    figures = loaded.error, loaded.held_out, loaded.share, loaded.loss_scale
    assert figures == (0.011, 0.012, 0.93, 1024.0)
    assert loaded.entries[0].error is None
