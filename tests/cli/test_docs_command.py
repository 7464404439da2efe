"""`dtypeguard docs`: the pages, from a clone and from a wheel."""

import pathlib
import re

import pytest

import dtypeguard
from tests.support.helpers import need
from tests.support.pages import DOCS, ROOT, ROOT_PAGES, main

NAMED = {page.stem: page for page in DOCS.glob("*.md")}
NAMED |= {name: ROOT / file for name, file in ROOT_PAGES.items()}


def test_it_lists_the_pages(command):
    code, listed, _ = command("docs")
    assert code == 0
    for name, page in NAMED.items():
        title = page.read_text().partition("\n")[0].removeprefix("# ")
        assert re.search(rf"^  {name} +{re.escape(title)}$", listed, re.MULTILINE)
    assert {file.name for file in DOCS.glob("*.ipynb")} <= {*listed.split()}


# The name of a page that was merged opens the one that has it.
MOVED = {"stability": "contract", "limits": "contract", "devices": "libraries"}
MOVED |= {"migrating": "corrected-optimizers", "docs/index.md": "index"}


@pytest.mark.parametrize(
    "name",
    ["explain", "explain.md", "docs/explain.md", "changelog", "contributing", *MOVED],
)
def test_it_prints_a_page(command, name):
    page = name if name in NAMED else MOVED.get(name, "explain")
    assert command(f"docs {name}") == (0, NAMED[page].read_text(), "")


def test_the_api_has_signatures_and_docstrings(command):
    code, printed, _ = command("docs api")
    assert (code, "\n::: " in printed) == (0, False)
    assert "### dtypeguard.guard\n\n```python\nguard(inner" in printed
    for name in dtypeguard.__all__:
        assert f"### dtypeguard.{name}\n" in printed
        assert getattr(dtypeguard, name).__doc__.partition("\n")[0] in printed


@pytest.mark.parametrize("name", ["pytorch_block.npz", "docs/equinox.ipynb"])
def test_it_prints_files_as_they_are(name, capfdbinary):
    assert main(["docs", name]) == 0
    assert capfdbinary.readouterr().out == (DOCS / pathlib.Path(name).name).read_bytes()


def test_a_word_finds_the_pages_in_which_it_stands(command):
    code, out, _ = command("docs Rounding")
    first, *listed = out.splitlines()
    assert (code, first) == (0, "Pages with 'Rounding', those with most of it first:")
    names = [line.split()[0] for line in listed]
    counts = [NAMED[name].read_text().lower().count("rounding") for name in names]
    assert len(names) > 2
    assert counts[0] == max(counts)
    assert min(counts) > 0
    assert "Train in bfloat16" in command("docs stall")[1]  # which has "stalls"


def test_the_wheel_has_the_pages():
    need("hatchling")
    from hatchling.builders.wheel import WheelBuilder

    files = WheelBuilder(str(ROOT)).recurse_included_files()
    packed = {file.distribution_path for file in files}
    for kind in ("*.md", "*.ipynb", "*.npz"):
        assert {f"dtypeguard/_docs/{file.name}" for file in DOCS.glob(kind)} <= packed
    assert {f"dtypeguard/_docs/{name}.md" for name in ROOT_PAGES} <= packed
    assert "dtypeguard/_cli/docs.py" in packed
    assert all(file.startswith("dtypeguard/") for file in packed)
