"""The site of the pages: built strictly, with every public name, loading nothing else."""

import ast
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from helpers import need
from pages import DOCS, ROOT

import dtypeguard.testing

# What a page or a style sheet loads from elsewhere; `data:` is an image in itself.
LOADED = r"""<(?:img|script|link(?! rel="canonical"))[^>]* (?:src|href)="(?:https?:)?//"""
ELSEWHERE = rf"""{LOADED}|(url\(|@import)\s*["']?(https?:)?//"""

# Headings of the glossary, and words of questions.
WORDS = ["drift", "leaf", "carry", "weak", "wide", "narrow", "share", "left", "rescue"]
WORDS += ["mini-step"]
ASKED = ["mixed precision", "recompile", "NaN", "loss scaling", "master weights", "jmp"]
ASKED += ["mpx", "EMA", "Some donated buffers were not usable", "gradient checkpointing"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built from a copy: workers do not write into each other's."""
    for name in ("zensical", "mkdocstrings_handlers.python"):
        need(name)
    docs = tmp_path_factory.mktemp("site") / "docs"
    built = shutil.ignore_patterns("_site", ".cache")
    shutil.copytree(DOCS, docs, ignore=built)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", "zensical.toml"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=docs,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return docs / "_site"


def public_names():
    """What users may import, by its dotted name."""
    yield from (f"dtypeguard.{name}" for name in dtypeguard.__all__)
    tree = ast.parse(pathlib.Path(dtypeguard.testing.__file__).read_text())
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        for target in targets:
            name = getattr(target, "id", getattr(target, "name", "_"))
            if not name.startswith("_"):
                yield f"dtypeguard.testing.{name}"


def test_every_public_name_is_on_the_api_page():
    shown = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), flags=re.MULTILINE)
    assert sorted(shown) == sorted(public_names())


def test_docstrings_are_shown_and_their_examples_as_code(site):
    page = (site / "api" / "index.html").read_text()
    assert not [name for name in public_names() if f'id="{name}"' not in page]
    assert "admonition" not in page
    assert page.count("Examples:") > 10


def test_it_loads_nothing_from_elsewhere(site):
    """Zensical's script fetches more for diagrams, tabs of images and code that runs."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    for file in (*pages, *site.rglob("*.css")):
        text = file.read_text()
        assert not re.search(ELSEWHERE, text), file
        assert not re.search(r'class="[^"]*\b(mermaid|glightbox|pyodide)\b', text), file
    assert re.search(ELSEWHERE, '<img src="//b">')


def test_a_search_finds_the_messages_of_jax(site):
    found = (site / "search.json").read_text()
    for message in (
        "scan body function carry input and carry output must have equal types",
        "while_loop body function carry input and carry output must have equal types",
        "cond branches must have equal output types but they differ",
        "can only be traced 1 times",
        "have no available implicit dtype promotion path",
    ):
        assert message in found


def found_by(site, word):
    """The titles of sections that have a word, which the search puts first."""
    items = json.loads((site / "search.json").read_text())["items"]
    titles = (item["title"] for item in items)
    return [title for title in titles if re.search(rf"\b{word}\b", title, re.IGNORECASE)]


@pytest.mark.parametrize("word", WORDS + ASKED)
def test_a_search_finds_the_words_of_users(site, word):
    assert found_by(site, word)


def test_each_page_has_a_title_and_a_description_of_its_own(site):
    pages = [*site.rglob("index.html")]
    assert len(pages) == len([*DOCS.glob("*.md")])
    heads = [page.read_text().partition("</head>")[0] for page in pages]
    for pattern in (r"<title>([^<]+)", r'<meta name="description" content="([^"]+)">'):
        texts = [re.findall(pattern, head) for head in heads]
        assert all(len(found) == 1 for found in texts)
        assert len({found[0] for found in texts}) == len(pages), pattern
    assert all("assets/icon.svg" in head for head in heads)


def test_it_has_the_version_and_no_files_of_its_making(site):
    version = f"dtypeguard {dtypeguard.__version__},"
    assert version in (DOCS / "zensical.toml").read_text()
    assert version in (site / "index.html").read_text()
    names = {file.name for file in site.rglob("*")}
    assert {"icon.svg", "nnx.ipynb", "pytorch_block.npz"} <= names
    assert not names & {"examples.py", "zensical.toml", "main.html", "site"}
