"""`dtypeguard docs NAME`: prints a page of the documentation, or a file of one."""

import argparse
import contextlib
import inspect
import operator
import pathlib
import re
from typing import TextIO

from .options import UsageError
from .output import to_reader

_PACKAGE = pathlib.Path(__file__).parents[1]
# In a wheel, and in a clone.
_FOLDERS = _PACKAGE / "_docs", _PACKAGE.parent / "docs"
# Of notebooks, and of arrays that pages load.
_FILES = ".ipynb", ".npz"


# By page, the names of those that it has taken in.
_MERGED = {
    "contract": ("stability", "limits", "releases"),
    "corrected-optimizers": ("migrating", "accumulate"),
    "libraries": ("devices", "notebooks"),
    "faq": ("glossary",),
    "find-the-line": ("why-dtypes-drift", "lbfgs"),
    "precision": ("stalled-updates", "not-finite", "too-wide"),
}


def run(arguments: argparse.Namespace, stdout: TextIO) -> int:
    """Prints the page or the file of a name, or lists those in which a word stands."""
    pages = {page.stem: page for page in sorted(_folder().glob("*.md"))}
    files = {x.name: x for suffix in _FILES for x in sorted(_folder().glob(f"*{suffix}"))}
    if arguments.name is None:
        listed = ["Pages, for dtypeguard docs NAME:", *_listed(pages)]
        listed += ["Files, for dtypeguard docs NAME > NAME:", f"  {'  '.join(files)}"]
        return _print("\n".join(listed) + "\n", stdout)
    name = arguments.name.rpartition("/")[2].removesuffix(".md")
    name: str = next((page for page, names in _MERGED.items() if name in names), name)
    if name in files:
        return _print(files[name].read_bytes(), stdout)
    if name in pages:
        text = pages[name].read_text(encoding="utf-8")
        return _print(re.sub(r"^::: (\S+)$", _documented, text, flags=re.MULTILINE), stdout)
    word = re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE)
    counts = {x: len(word.findall(page.read_text("utf-8"))) for x, page in pages.items()}
    found = sorted(filter(counts.get, counts), key=lambda x: -counts[x])
    if not found:
        raise UsageError(f"there is no page {name!r}. To list them: dtypeguard docs")
    listed = [f"Pages with {name!r}, those with most of it first:"]
    return _print(
        "\n".join([*listed, *_listed({x: pages[x] for x in found})]) + "\n", stdout
    )


def _listed(pages: dict[str, pathlib.Path]) -> list[str]:
    width = max(map(len, pages))
    return [f"  {name:<{width}}  {_title(page)}" for name, page in pages.items()]


def _print(text: str | bytes, stdout: TextIO) -> int:
    with to_reader(stdout):
        if isinstance(text, bytes):
            stdout.buffer.write(text)
        else:
            stdout.write(text)
    return 0


def _folder() -> pathlib.Path:
    folder = next((each for each in _FOLDERS if (each / "index.md").is_file()), None)
    if folder is None:
        raise UsageError("this installation has no pages: install it again, from a wheel")
    return folder


def _title(page: pathlib.Path) -> str:
    with page.open(encoding="utf-8") as file:
        return file.readline().removeprefix("# ").strip()


def _documented(name: re.Match[str]) -> str:
    """A public name with its signature and docstring, as the site shows it."""
    import dtypeguard.testing

    found = operator.attrgetter(name[1].removeprefix("dtypeguard."))(dtypeguard)
    signature = ""
    with contextlib.suppress(ValueError):  # an error or a warning has none
        last = name[1].rpartition(".")[2]
        signature = f"```python\n{last}{inspect.signature(found)}\n```\n\n"
    return f"### {name[1]}\n\n{signature}{inspect.getdoc(found)}"
