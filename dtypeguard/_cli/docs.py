"""`dtypeguard docs NAME`: prints a page of the documentation, or a file of one."""

import argparse
import contextlib
import difflib
import inspect
import pathlib
import re
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any

from .load import UsageError
from .output import to_reader

_PACKAGE = pathlib.Path(__file__).parents[1]
# In a wheel, and in a clone.
_FOLDERS = _PACKAGE / "_docs", _PACKAGE.parent / "docs"
# Of notebooks, and of arrays that pages load.
_FILES = ".ipynb", ".npz"


def docs(arguments: argparse.Namespace) -> int:
    """Prints the page or the file of that name, or without one the names and titles of all.

    Raises:
        UsageError: if there is no such page.
    """
    pages, name = _pages(), arguments.name
    files = {x.name: x for suffix in _FILES for x in sorted(_folder().glob(f"*{suffix}"))}
    if name is None:
        width = max(map(len, pages))
        lines = (f"{name:<{width}}  {_title(page)}" for name, page in pages.items())
        listed = "\n  ".join(["Pages, for dtypeguard docs NAME:", *lines])
        listed += "\nFiles, for dtypeguard docs NAME > NAME:\n  " + "  ".join(files)
        return _print(f"{listed}\n")
    name = name.rpartition("/")[2].removesuffix(".md")
    if name in files:
        return _print(files[name].read_bytes())
    if name not in pages:
        like = difflib.get_close_matches(name, [*pages, *files], 1)
        meant = f" Did you mean dtypeguard docs {like[0]}?" if like else ""
        raise UsageError(f"there is no page {name!r}.{meant} To list them: dtypeguard docs")
    text = pages[name].read_text(encoding="utf-8")
    return _print(re.sub(r"^::: (\S+)$", _documented, text, flags=re.MULTILINE))


def _print(text: str | bytes) -> int:
    with to_reader():
        if isinstance(text, bytes):
            sys.stdout.buffer.write(text)
        else:
            sys.stdout.write(text)
    return 0


def _folder() -> pathlib.Path:
    folder = next((each for each in _FOLDERS if (each / "index.md").is_file()), None)
    if folder is None:
        raise UsageError("this installation has no pages: install it again, from a wheel")
    return folder


def _pages() -> dict[str, pathlib.Path]:
    return {page.stem: page for page in sorted(_folder().glob("*.md"))}


def _title(page: pathlib.Path) -> str:
    with page.open(encoding="utf-8") as file:
        return file.readline().removeprefix("# ").strip()


def _documented(name: re.Match[str]) -> str:
    """A public name with its signature and docstring, as the site shows it."""
    import dtypeguard.testing

    found, dotted = dtypeguard, name[1].removeprefix("dtypeguard.")
    for part in dotted.split("."):
        found = getattr(found, part)
    signature = ""
    if callable(found):
        with contextlib.suppress(ValueError):  # an error or a warning has none
            last = dotted.rpartition(".")[2]
            shown = "\n".join(f"{last}{inspect.signature(x)}" for x in _overloads(found))
            signature = f"\n\n```python\n{shown}\n```"
    shown = inspect.getdoc(found) if callable(found) else repr(found)
    return f"### {name[1]}{signature}\n\n{shown}"


def _overloads(found: Any) -> Sequence[Any]:
    """The overloads of a function by the module that defines it, or the function."""
    module = getattr(found, "__globals__", {}).get("__name__", "")
    function = types.SimpleNamespace(__module__=module, __qualname__=found.__qualname__)
    return typing.get_overloads(function) or [found]  # pyright: ignore[reportArgumentType]: it reads these names
