"""The notebooks of `docs/` run in a kernel, and give what is stored under their cells."""

import re

import pytest

from tests.support.helpers import need
from tests.support.notebooks import NOTEBOOKS, follow_notebook
from tests.support.pages import DOCS

pytestmark = pytest.mark.third_party


@pytest.fixture(autouse=True)
def _packages():
    for name in ("nbclient", "nbformat", "ipykernel", "flax"):
        need(name)


@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(x, id=x.stem, marks=[pytest.mark.exhaustive] * (x.stem != "nnx"))
        for x in NOTEBOOKS
    ],
)
def test_cells_give_what_is_stored(notebook, tmp_path, monkeypatch):
    """`python tests/follow_pages.py docs/nnx.ipynb` shows the same by itself."""
    monkeypatch.chdir(tmp_path)
    for found in follow_notebook(notebook):
        pytest.fail(f"{found.id} stores\n{found.shown}\nand gives\n{found.printed}")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_it_is_on_the_page_and_its_links_lead_somewhere(notebook):
    assert f"]({notebook.name})" in (DOCS / "libraries.md").read_text()
    links = re.findall(r"\]\(([\w.-]+\.md)(?:#[\w-]+)?\)", notebook.read_text())
    assert links
    assert not [link for link in links if not (DOCS / link).is_file()]
