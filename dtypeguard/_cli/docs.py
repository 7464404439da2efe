"""`dtypeguard docs NAME`: prints a page of the documentation, or a file of one."""

import argparse
import contextlib
import inspect
import operator
import pathlib
import re
from typing import TextIO

from .options import UsageError
from .output import print_text, to_reader

_PACKAGE = pathlib.Path(__file__).parents[1]
_CLONE = _PACKAGE.parent
# A wheel has all pages in one folder, these too, by the names that they have on the site.
ROOT_PAGES = {
    "index": "README.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
}
# Of notebooks, and of arrays that pages load.
_FILE_SUFFIXES = ".ipynb", ".npz"
_STEM = 7  # characters of a word that is looked for
# By page, the names of those that it has taken in: links from outside hold them.
MERGED_PAGES = {
    "contract": ("stability", "limits", "releases"),
    "corrected-optimizers": ("migrating", "accumulate"),
    "libraries": ("devices", "notebooks"),
    "faq": ("glossary",),
    "messages": ("why-dtypes-drift", "lbfgs"),
    "precision": ("stalled-updates", "not-finite", "too-wide", "products"),
}


def docs_command(arguments: argparse.Namespace, stdout: TextIO) -> int:
    """Prints the page or the file of a name, or lists those in which a word stands."""
    pages, files = _pages_and_files()
    if arguments.name is None:
        lines = ["Pages, for dtypeguard docs NAME:"]
        lines += _rows_of_pages(pages)
        lines += ["Files, for dtypeguard docs NAME > NAME:", f"  {'  '.join(files)}"]
        print_text("\n".join(lines), stdout)
        return 0
    # As a link in a page has it: `docs/explain.md`.
    name = arguments.name.rpartition("/")[2].removesuffix(".md")
    for page, names in MERGED_PAGES.items():
        if name in names:
            name = page
    if name in files:
        with to_reader(stdout):  # a binary file: no text is decoded
            stdout.buffer.write(files[name].read_bytes())
    elif name in pages:
        text = pages[name].read_text(encoding="utf-8")
        # The site fills these in by mkdocstrings.
        text = re.sub(r"^::: (\S+)$", _documented, text, flags=re.MULTILINE)
        print_text(text.removesuffix("\n"), stdout)
    else:
        lines = [f"Pages with {name!r}, those with most of it first:"]
        lines += _rows_of_pages(_pages_with(name, pages))
        print_text("\n".join(lines), stdout)
    return 0


def _pages_with(word: str, pages: dict[str, pathlib.Path]) -> dict[str, pathlib.Path]:
    """Returns the pages with words that begin alike, those with most of them first."""
    # "recompilation" is to find "recompiles" as well: most words differ at their ends.
    pattern = re.compile(rf"\b{re.escape(word[:_STEM])}", re.IGNORECASE)
    counts = {}
    for name, page in pages.items():
        count = len(pattern.findall(page.read_text(encoding="utf-8")))
        if count:
            counts[name] = count
    if not counts:
        raise UsageError(f"there is no page {word!r}. To list them: dtypeguard docs")
    names = sorted(counts, key=lambda name: -counts[name])
    return {name: pages[name] for name in names}


def _rows_of_pages(pages: dict[str, pathlib.Path]) -> list[str]:
    """Returns the names of pages with their titles."""
    width = max(map(len, pages))
    rows = []
    for name, page in pages.items():
        with page.open(encoding="utf-8") as file:
            title = file.readline().removeprefix("# ").strip()
        rows.append(f"  {name:<{width}}  {title}")
    return rows


def _pages_and_files() -> tuple[dict[str, pathlib.Path], dict[str, pathlib.Path]]:
    """Returns the paths of the pages by name, and of other files by file name."""
    folder = _PACKAGE / "_docs"
    root_pages = {}
    if not folder.is_dir():
        folder = _CLONE / "docs"
        root_pages = {name: _CLONE / file for name, file in ROOT_PAGES.items()}
    if not folder.is_dir():
        raise UsageError("this installation has no pages: install it again, from a wheel")
    paths = list(folder.iterdir())
    pages = {path.stem: path for path in paths if path.suffix == ".md"} | root_pages
    files = {path.name: path for path in paths if path.suffix in _FILE_SUFFIXES}
    return dict(sorted(pages.items())), dict(sorted(files.items()))


def _documented(name: re.Match[str]) -> str:
    """Returns a public name with its signature and docstring, as the site shows it."""
    import dtypeguard.testing

    # By its parts: a page may have a function of `dtypeguard.testing`.
    public = operator.attrgetter(name[1].removeprefix("dtypeguard."))(dtypeguard)
    signature = ""
    with contextlib.suppress(ValueError):  # an error or a warning has none
        last = name[1].rpartition(".")[2]
        signature = f"```python\n{last}{inspect.signature(public)}\n```\n\n"
    return f"### {name[1]}\n\n{signature}{inspect.getdoc(public)}"
