"""The site of the pages: built strictly, with every public name, loading nothing else."""

import json
import re

import pytest

import dtypeguard
import dtypeguard.testing
from tests.support.helpers import need, run_python
from tests.support.pages import DOCS, MERGED_PAGES

# What a page or a style sheet loads from elsewhere; `data:` is an image in itself.
LOADED = r"""<(?:img|script|link(?! rel="canonical"))[^>]* (?:src|href)="(?:https?:)?//"""
ELSEWHERE = rf"""{LOADED}|(url\(|@import)\s*["']?(https?:)?//"""

# Messages of JAX; headings of the glossary, and words of questions, which titles have.
MESSAGES = (
    "scan body function carry input and carry output must have equal types",
    "while_loop body function carry input and carry output must have equal types",
    "cond branches must have equal output types but they differ",
    "can only be traced 1 times",
    "have no available implicit dtype promotion path",
)
WORDS = (
    "drift leaf carry weak wide narrow share left rescue mini-step recompile NaN jmp mpx"
)
ASKED = ["mixed precision", "loss scaling", "master weights", "gradient checkpointing"]
ASKED += ["mpx", "EMA", "Some donated buffers were not usable"]

# The front page is that of the site's folder itself.
SITE_PAGES = [".", "changelog", "contributing", *(x.stem for x in DOCS.glob("*.md"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built into a folder of the tests."""
    for name in ("zensical", "mkdocstrings_handlers.python"):
        need(name)
    folder = tmp_path_factory.mktemp("site") / "built"
    done = run_python(DOCS / "site" / "build.py", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def public_names():
    """What users may import, by its dotted name."""
    for module in (dtypeguard, dtypeguard.testing):
        yield from (f"{module.__name__}.{name}" for name in module.__all__)


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


def test_a_search_finds_messages_and_the_words_of_users(site):
    text = (site / "search.json").read_text()
    assert not [message for message in MESSAGES if message not in text]
    titles = "\n".join(item["title"] for item in json.loads(text)["items"])
    for word in (*WORDS.split(), *ASKED):
        assert re.search(rf"\b{word}\b", titles, re.IGNORECASE), word


def test_each_page_has_a_title_and_a_description_of_its_own(site):
    pages = [site / page / "index.html" for page in SITE_PAGES]
    heads = [page.read_text().partition("</head>")[0] for page in pages]
    for pattern in (r"<title>([^<]+)", r'<meta name="description" content="([^"]+)">'):
        texts = [re.findall(pattern, head) for head in heads]
        assert all(len(found) == 1 for found in texts)
        assert len({found[0] for found in texts}) == len(pages), pattern
    assert all("assets/icon.svg" in head for head in heads)


def test_it_has_the_version_and_no_files_of_its_making(site):
    assert f"dtypeguard {dtypeguard.__version__}," in (site / "index.html").read_text()
    names = {file.name for file in site.rglob("*")}
    assert {"icon.svg", "nnx.ipynb", "pytorch_block.npz"} <= names
    assert not names & {"build.py", "examples.py", "zensical.toml", "main.html", "site"}


def test_the_name_of_a_page_that_another_took_in_leads_there(site):
    for name, page in MERGED_PAGES.items():
        assert f'"../{page}/" + location.hash' in (site / name / "index.html").read_text()
