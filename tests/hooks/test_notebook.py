"""Cells of a notebook, in a kernel: reports, lines, notes on errors and progress."""

import re

import pytest

from tests.support.helpers import IS_RECORDED
from tests.support.notebooks import executed

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

SCAN = "jax.lax.scan(step, x, jnp.ones((4, 3), jnp.bfloat16))"
CELLS = {
    "imports": "import jax, jax.numpy as jnp, dtypeguard\n%load_ext dtypeguard",
    "step": (
        "def step(carry, x):\n"
        "    decay = jnp.asarray(0.9, jnp.float32)\n"
        "    return decay * carry + x, None\n"
        "x = jnp.ones(3, jnp.bfloat16)"
    ),
    "error": SCAN,
    "again": "%reload_ext dtypeguard\n" + SCAN,
    "other": "1 / 0",
    "audit": "dtypeguard.audit(step, x, x)",
    "precision": "dtypeguard.audit_precision(lambda x: jnp.sum(jnp.exp(x) - 1), x / 64)",
    "quiet": "r = dtypeguard.audit_precision(jnp.exp, x, progress=False)",
    "unload": "%unload_ext dtypeguard\n" + SCAN,
}


@pytest.fixture(scope="module")
def outputs():
    """What each cell gave, by its name."""
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    return dict(zip(CELLS, (cell.outputs for cell in executed(notebook).cells)))


def error_of(outputs):
    (error,) = (each for each in outputs if each.output_type == "error")
    return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback))


@pytest.mark.parametrize("cell", ["error", "again"])
def test_an_error_in_a_cell_has_one_note(outputs, cell):
    text = error_of(outputs[cell])
    assert text.count("dtypeguard: 1 leaf of the carry of scan comes back") == 1
    assert re.search(r"becomes \w+ +Cell In\[2\], line 3 ", text)
    if IS_RECORDED:
        assert re.search(r"because of \w+ +Cell In\[2\], line 2 ", text)
    assert "guard the body: dtypeguard.guard_step(" in text
    assert "ipykernel_" not in text.partition("dtypeguard:")[2]


@pytest.mark.parametrize(("cell", "kind"), [("other", "Zero"), ("unload", "TypeError")])
def test_other_errors_are_as_without(outputs, cell, kind):
    text = error_of(outputs[cell])
    assert text.splitlines()[1].startswith(kind)
    assert "dtypeguard:" not in text


@pytest.mark.parametrize(
    ("cell", "line"), [("audit", "Cell In[2], line 3"), ("precision", "Cell In[7], line 1")]
)
def test_a_report_is_shown_as_text(outputs, cell, line):
    (data,) = (x.data for x in outputs[cell] if x.output_type == "execute_result")
    assert line in data["text/plain"]
    assert outputs["quiet"] == []
