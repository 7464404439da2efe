"""`dtypeguard docs`: the pages, from a clone and from a wheel."""

import pathlib
import re

import pytest
from helpers import need
from pages import DOCS, ROOT

import dtypeguard
from dtypeguard._cli.main import main


def test_it_lists_the_pages_and_prints_one(capsys):
    assert main(["docs"]) == 0
    listed = capsys.readouterr().out
    for page in DOCS.glob("*.md"):
        title = page.read_text().partition("\n")[0].removeprefix("# ")
        assert re.search(rf"^  {page.stem} +{re.escape(title)}$", listed, re.MULTILINE)
    assert {file.name for file in DOCS.glob("*.ipynb")} <= {*listed.split()}
    for name in ("explain", "explain.md", "docs/explain.md"):
        assert main(["docs", name]) == 0
        assert capsys.readouterr().out == (DOCS / "explain.md").read_text()


def test_the_name_of_a_page_that_was_merged_opens_the_one_that_has_it(capsys):
    moved = {"stability": "contract", "limits": "contract", "devices": "libraries"}
    for name, page in (moved | {"migrating": "corrected-optimizers"}).items():
        assert main(["docs", name]) == 0
        assert capsys.readouterr().out == (DOCS / f"{page}.md").read_text()
        assert not (DOCS / f"{name}.md").exists()


def test_the_api_has_signatures_and_docstrings(capsys):
    assert main(["docs", "api"]) == 0
    printed = capsys.readouterr().out
    assert "\n::: " not in printed
    assert "### dtypeguard.guard\n\n```python\nguard(inner" in printed
    for name in dtypeguard.__all__:
        assert f"### dtypeguard.{name}\n" in printed
        assert getattr(dtypeguard, name).__doc__.partition("\n")[0] in printed


@pytest.mark.parametrize("name", ["nnx.ipynb", "pytorch_block.npz", "docs/equinox.ipynb"])
def test_it_prints_files_as_they_are(name, capfdbinary):
    assert main(["docs", name]) == 0
    file = DOCS / pathlib.Path(name).name
    assert capfdbinary.readouterr().out == file.read_bytes()


def test_a_word_finds_the_pages_in_which_it_stands(capsys):
    assert main(["docs", "Rounding"]) == 0
    first, *listed = capsys.readouterr().out.splitlines()
    assert first == "Pages with 'Rounding', those with most of it first:"
    names = [line.split()[0] for line in listed]
    counts = [(DOCS / f"{x}.md").read_text().lower().count("rounding") for x in names]
    assert len(names) > 2
    assert counts[0] == max(counts)
    assert min(counts) > 0


def test_the_wheel_has_the_pages():
    need("hatchling")
    from hatchling.builders.wheel import WheelBuilder

    files = WheelBuilder(str(ROOT)).recurse_included_files()
    packed = {file.distribution_path for file in files}
    for kind in ("*.md", "*.ipynb", "*.npz"):
        assert {f"dtypeguard/_docs/{file.name}" for file in DOCS.glob(kind)} <= packed
    others = {file for file in packed if not file.startswith("dtypeguard/")}
    assert "dtypeguard/_cli/docs.py" in packed
    assert not others
