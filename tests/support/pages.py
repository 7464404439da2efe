"""Reads the README and the pages of `docs/`, and follows them to the letter.

Python blocks run, in a folder of their own with the arrays of `docs/` that the page loads.
A block whose first line is `# train.py` is that file of the folder. Lines of `sh` that
begin with `dtypeguard` or `python` run there as well. A text block right behind either is
what it prints.
"""

import contextlib
import io
import linecache
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import jax
import optax

from dtypeguard._cli.docs import MERGED_PAGES as MERGED_PAGES, ROOT_PAGES as ROOT_PAGES
from dtypeguard._cli.main import main as main
from dtypeguard._leaves.compat import x64_enabled

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [*(ROOT / file for file in ROOT_PAGES.values()), *sorted(DOCS.glob("*.md"))]

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_SHOWN = r"(?:\n\n^```text\n(?P<shown{0}>.*?)^```$)?"
_PARTS = re.compile(
    rf"^```python\n(?P<code>.*?)^```${_SHOWN.format(1)}"
    rf"|^```sh\n(?P<lines>.*?)^```${_SHOWN.format(2)}"
    r"|^<!-- run: (?P<run>.*?)(?: \((?P<of>optax|python) (?P<release>\S+)\))? -->\n"
    r"(?:```text\n(?P<shown3>.*?)^```$|(?P<table>(?:\|[^\n]*\n)+))",
    flags=re.DOTALL | re.MULTILINE,
)
_TRACEBACK = re.compile(r"^Traceback .*?(?=^\w+: )", flags=re.DOTALL | re.MULTILINE)
# What differs between machines and releases: hashes, releases and other figures, lines of
# packages, folders, how wide a column is.
_VARYING = (
    (re.compile(r"\(Python 3.12 and later record lines, and name more of them.\)"), ""),
    (re.compile(r"0x[0-9a-f]+"), "0x0"),
    (re.compile(r"(?<=[\s(])(?:/[^\s/]+)+/"), ""),
    (re.compile(r"(\w/[\w/]+\.py):\d+"), r"\1:0"),
    (re.compile(r"~?-?\d+(\.\d+)*(e[-+]?\d+)?%"), "0%"),
    (re.compile(r"(?<![\w.])\d+(\.\d+)+(e[-+]?\d+)?|(?<![\w.])\d+(e[-+]?\d+)"), "0.0"),
    (re.compile(r"\b\d+ s\b"), "0 s"),
    (re.compile(r"\bof \d+"), "of 0"),
    (re.compile(r"\('float32', 'bfloat16'\)"), "('bfloat16', 'float32')"),  # of a set
    (re.compile(r"[ -]{2,}|[ \t]+"), " "),
)


class Difference(NamedTuple):
    """An example that does not print what its page shows, and where the page shows it."""

    id: str
    shown: str
    printed: str
    span: tuple[int, int]


def follow(page: pathlib.Path) -> Iterator[Difference]:
    """Does what a page says, in the working directory, and yields what differs from it."""
    text = page.read_text()
    for data in DOCS.glob("*.npz"):
        if f'"{data.name}"' in text:
            shutil.copy(data, data.name)
    for number, part in enumerate(_PARTS.finditer(text)):
        printed, name = "", f"{page.stem}-{number}"
        groups = "shown1", "shown2", "shown3", "table"
        span = next((part.span(x) for x in groups if part[x] is not None), None)
        shown = text[slice(*span)] if span else ""
        if part["code"] is not None:
            named = re.match(r"# (\w+\.py)\n", part["code"])
            file = named[1] if named else "<page>"
            if named:
                pathlib.Path(file).write_text(part["code"])
            if f"\npython {file}" in text:
                continue
            printed = run_code(part["code"], file)
        elif part["run"]:
            if not is_of(part["of"], part["release"]):
                continue
            printed, name = run_command(part["run"]), f"{page.stem}-{part['run']}"
        else:
            for line in part["lines"].replace("\\\n", " ").splitlines():
                if line.startswith(("dtypeguard ", "python ")) and "pip" not in line:
                    printed += run_command(line)
            name = f"{page.stem}-{part['lines'].strip()}"
            if not shown and "usage:" not in printed:  # its output is not on the page
                continue
        if not matches(shown, printed):
            yield Difference(name, shown, printed, span or (part.end(), part.end()))


def rewritten(page: pathlib.Path) -> str:
    """The text of a page with what its examples print, where that differs."""
    text = page.read_text()
    for found in reversed([*follow(page)]):
        start, end = found.span
        printed = "".join(f"{line.rstrip()}\n" for line in found.printed.splitlines())
        is_new = start == end  # no text block stands there yet
        block = f"\n\n```text\n{printed}```" if is_new else printed
        text = text[:start] + block + text[end:]
    return text


def matches(shown: str, printed: str) -> bool:
    """Whether a page shows what is printed. A line of `...` stands for any lines."""
    if shown.strip() == "...":
        return False
    lines = [
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
        for line in normal(shown)
    ]
    output = "".join(f"{line}\n" for line in normal(printed))
    return re.fullmatch("".join(lines), output) is not None


def normal(text: str) -> list[str]:
    """The lines of a text without what differs between machines and releases."""
    for pattern, by in _VARYING:
        text = pattern.sub(by, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def is_of(package: str | None, release: str) -> bool:
    """Whether this is the Optax that a page shows, or a Python as new as that."""
    if package == "python":
        return sys.version_info >= tuple(map(int, release.split(".")))
    return package is None or release == optax.__version__


def run_command(line: str) -> str:
    """What a command of a page prints; its script runs in a process of its own."""
    program, *words = shlex.split(line)
    if program == "dtypeguard" and words[0] != "run":
        out, err = io.StringIO(), io.StringIO()
        with (
            imports_of_folder(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = main(words)
        return out.getvalue() if status < 2 else f"usage: {line}"
    command = ["-m", "dtypeguard", *words] if program == "dtypeguard" else words
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *command], env=variables, **both)
    return _TRACEBACK.sub("...\n", done.stdout)


@contextlib.contextmanager
def imports_of_folder() -> Iterator[None]:
    """Lets code import the files of its folder, and forgets them and the x64 flag after."""
    x64, path, modules = x64_enabled(), sys.path[:], set(sys.modules)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", x64)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            spec = sys.modules[name].__spec__
            if str(getattr(spec, "origin", "")).startswith(os.getcwd()):
                del sys.modules[name]


def run_code(code: str, file: str = "<page>") -> str:
    """What a program prints, warns of and raises, but for JAX's word on its own frames.

    Flags that it sets are set back.
    """
    printed = io.StringIO()
    raised, names = "", {"__name__": "__main__"}
    # As for a file: notes on errors read the source.
    linecache.cache[file] = len(code), None, code.splitlines(True), file
    with warnings.catch_warnings(record=True, action="always") as warned:
        try:
            with imports_of_folder(), contextlib.redirect_stdout(printed):
                exec(compile(code, file, "exec"), names)
        except Exception as error:
            notes = [x for x in getattr(error, "__notes__", ()) if not x.startswith("---")]
            lines = [f"{type(error).__name__}: {error}", *notes]
            raised = "".join(f"{line}\n" for line in lines)
    said = "".join(f"{w.category.__name__}: {w.message}\n" for w in warned)
    return printed.getvalue() + said + raised


def prose(page: pathlib.Path) -> str:
    """The text of a page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())
