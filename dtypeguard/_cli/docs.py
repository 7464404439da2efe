"""`dtypeguard docs NAME`: prints a page of the documentation, or a file of one."""

import argparse
import collections
import inspect
import pathlib
import pydoc
import re
from collections.abc import Iterable
from typing import Any, TextIO

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
# The pages that others have taken in, by their own names: links from outside hold them.
MERGED_PAGES = {
    "stability": "contract",
    "limits": "contract",
    "releases": "contract",
    "migrating": "corrected-optimizers",
    "accumulate": "corrected-optimizers",
    "devices": "libraries",
    "notebooks": "libraries",
    "glossary": "faq",
    "why-dtypes-drift": "messages",
    "lbfgs": "messages",
    "stalled-updates": "precision",
    "not-finite": "precision",
    "too-wide": "precision",
    "products": "precision",
}


def docs_command(arguments: argparse.Namespace, stdout: TextIO) -> int:
    """Prints the page or the file of a name, or lists those in which a word stands."""
    paths = _paths()
    if arguments.name is None:
        lines = ["Pages, for dtypeguard docs NAME:", *_rows(paths, sorted(paths))]
        print_text("\n".join(lines), stdout)
        return 0
    # As a link in a page has it: `docs/explain.md`.
    name: str = arguments.name.rpartition("/")[2].removesuffix(".md")
    name = MERGED_PAGES.get(name, name)
    if name not in paths:
        lines = [f"Pages with {name!r}, those with most of it first:"]
        lines += _rows(paths, _pages_with(name, paths))
        print_text("\n".join(lines), stdout)
    elif paths[name].suffix == ".md":
        text = paths[name].read_text(encoding="utf-8")
        # The site fills these in by mkdocstrings.
        text = re.sub(r"^::: (\S+)$", _documented, text, flags=re.MULTILINE)
        print_text(text.removesuffix("\n"), stdout)
    else:
        with to_reader(stdout):  # a binary file: no text is decoded
            stdout.buffer.write(paths[name].read_bytes())
    return 0


def _paths() -> dict[str, pathlib.Path]:
    """Returns the paths of pages by name, and of other files by file name."""
    folder = _PACKAGE / "_docs"
    paths = {}
    if not folder.is_dir():
        folder = _CLONE / "docs"
        paths = {name: _CLONE / file for name, file in ROOT_PAGES.items()}
    for path in sorted(folder.glob("*.*")):
        if path.suffix in (".md", *_FILE_SUFFIXES):
            paths[path.name.removesuffix(".md")] = path
    return paths


def _pages_with(word: str, paths: dict[str, pathlib.Path]) -> list[str]:
    """Returns the pages with words that begin alike, those with most of them first."""
    # "recompilation" is to find "recompiles" as well: most words differ at their ends.
    pattern = re.compile(rf"\b{re.escape(word[:_STEM])}", re.IGNORECASE)
    counts = collections.Counter[str]()
    for name, path in paths.items():
        if path.suffix == ".md":
            counts[name] = len(pattern.findall(path.read_text(encoding="utf-8")))
    names = [name for name, count in counts.most_common() if count]
    if not names:
        raise UsageError(f"there is no page {word!r}. To list them: dtypeguard docs")
    return names


def _rows(paths: dict[str, pathlib.Path], names: Iterable[str]) -> list[str]:
    """Returns the names of pages with their titles, and of files with how to write them."""
    width = max(map(len, paths))
    rows = []
    for name in names:
        title = f"dtypeguard docs {name} > {name}"
        if paths[name].suffix == ".md":
            text = paths[name].read_text(encoding="utf-8")
            title = text.partition("\n")[0].removeprefix("# ")
        rows.append(f"  {name:<{width}}  {title}")
    return rows


def _documented(name: re.Match[str]) -> str:
    """Returns a public name with its signature and docstring, as the site shows it."""
    public: Any = pydoc.locate(name[1])
    documented = f"### {name[1]}\n\n"
    if not isinstance(public, type) or not issubclass(public, Exception):
        documented += f"```python\n{public.__name__}{inspect.signature(public)}\n```\n\n"
    return f"{documented}{inspect.getdoc(public)}"
