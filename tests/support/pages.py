"""Reads the README and the pages of `docs/`: their blocks of code, commands and links."""

import contextlib
import io
import linecache
import pathlib
import re
import warnings
from typing import Any, NamedTuple

import jax

from dtypeguard._leaves.compat import x64_enabled

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.glob("*.md"))]

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_CODE = re.compile(
    r"^```python\n(?P<code>.*?)^```$(?:\n\n^```text\n(?P<shown>.*?)^```$)?",
    flags=re.DOTALL | re.MULTILINE,
)
_REMEDY = re.compile(r"\b[Ww]rite\s+`([^`]+)`\s+in\s+place\s+of\s+`([^`]+)`")
_RUN = re.compile(
    r"^<!-- run: (?P<command>.*?)(?: \(optax (?P<optax>\S+)\))? -->\n"
    r"(?:```text\n(?P<text>.*?)^```$|(?P<table>(?:\|.*\n)+))",
    flags=re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A block of Python on a page.

    Attributes:
        id: the page and the number of the block on it.
        code: the program.
        shown: the lines of the text block right behind it: what it prints, warns of or
            raises.
        remedies: pairs of what is to be written, and in place of what, in the words
            "Write `this` in place of `that`" behind it.
    """

    id: str
    code: str
    shown: list[str]
    remedies: list[tuple[str, str]]


class Run(NamedTuple):
    """A command and the output that a page has of it.

    Attributes:
        id: the page and the command.
        argv: the words of the command.
        optax: the release of Optax for which the output is known; None for any.
        text: the output.
    """

    id: str
    argv: list[str]
    optax: str | None
    text: str


def blocks(page: pathlib.Path) -> list[Block]:
    """The blocks of Python on a page."""
    text = page.read_text()
    found = list(_CODE.finditer(text))
    ends = [block.start() for block in found[1:]] + [len(text)]
    return [
        Block(
            f"{page.stem}-{number}",
            block["code"],
            lines_of(block["shown"] or ""),
            _REMEDY.findall(text[block.end() : end]),
        )
        for number, (block, end) in enumerate(zip(found, ends), 1)
    ]


def runs(page: pathlib.Path) -> list[Run]:
    """The commands on a page whose output stands below them."""
    return [
        Run(
            f"{page.stem}-{found['command']}",
            found["command"].split(),
            found["optax"],
            (found["text"] or found["table"]).strip(),
        )
        for found in _RUN.finditer(page.read_text())
    ]


def lines_of(shown: str) -> list[str]:
    """The lines of a text block that hold more than `...`."""
    return [line.rstrip() for line in shown.splitlines() if line.strip() not in ("", "...")]


def missing(lines: list[str], output: str) -> list[str]:
    """The lines that are not in the output; `...` within one stands for anything."""
    return [line for line in lines if not all(part in output for part in line.split("..."))]


def run_code(code: str, names: dict[str, Any] | None = None) -> str:
    """What a program prints, warns of and raises. Flags that it sets are set back."""
    printed, x64 = io.StringIO(), x64_enabled()
    raised = ""
    # As for a file: notes on errors read the source.
    linecache.cache["<page>"] = len(code), None, code.splitlines(True), "<page>"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "<page>", "exec"), {} if names is None else names)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}\n"
        finally:
            jax.config.update("jax_enable_x64", x64)
    said = "".join(f"{w.category.__name__}: {w.message}\n" for w in warned)
    return printed.getvalue() + said + raised


def prose(page: pathlib.Path) -> str:
    """The text of a page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())
