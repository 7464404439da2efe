"""The forms of what a command finds: text, JSON, and annotations of GitHub."""

import argparse
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from .._explain.colors import MARKS
from .._explain.unfiltered import printed
from .._leaves.table import shown_fields
from .options import UsageError, default_form
from .output import print_text, printer, write_file


def deliver(
    options: argparse.Namespace,
    stdout: TextIO,
    report: Any,
    is_ok: bool,
    style: str = "",
    data: Any = None,
) -> int:
    """Writes a report into files, and prints it in the form that is asked for.

    The data are what it is for programs, if it has no JSON of its own.
    """
    form = options.format or default_form()
    if options.json or form == "json":
        found = report.to_json() if data is None else _json(data)
        if options.json not in (None, "-"):
            write_file(options.json, found)
        if options.json == "-" or form == "json":
            print_text(found.rstrip(), stdout)
            return 0 if is_ok else 1
    show, text = printer(stdout), str(report).rstrip()
    headline, *lines = text.splitlines()
    show(headline, f"bold {style}".rstrip() if is_ok else "bold red")
    for line in lines:
        show(line)
    if form == "github":
        for line in annotations(text, "warning" if is_ok else "error"):
            print_text(line, stdout)
    return 0 if is_ok else 1


def _json(data: Any) -> str:
    return json.dumps(data, indent=1, default=shown_fields)


def check_files(options: argparse.Namespace, *more: str | None) -> None:
    """Refuses a file before long work, not after it; leaves what the files hold."""
    names = (x for x in (options.json, *more) if x not in (None, "-"))
    for name in names:
        is_new = not os.path.exists(name)
        try:
            open(name, "a").close()
        except OSError as error:
            raise UsageError(f"{name!r} cannot be written: {error.strerror}") from None
        if is_new:
            os.remove(name)


def annotations(text: str, level: str) -> Iterator[str]:
    """The commands that have GitHub show a report beside the lines that it names.

    All of it stands at the first of the user's lines, at others what names them. An error
    that names none has no line.

    References:
        GitHub Docs, "Workflow commands for GitHub Actions",
        https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    """
    headline, told = text.partition("\n")[0], dict[str, str]()
    for line in text.splitlines():
        for place in dict.fromkeys(_places(line)):
            told[place] = f"{told[place]}\n{line}" if place in told else line
    title = f"title=dtypeguard%3A {_escaped(headline.partition(': ')[2] or headline, ':,')}"
    for number, (place, found) in enumerate(told.items()):
        file, _, line = place.rpartition(":")
        where = f"file={_escaped(_file(file), ':,')},line={line},{title}"
        yield f"::{level} {where}::{_escaped(text if number == 0 else found)}"
    if not told and level == "error":
        yield f"::{level} {title}::{_escaped(text)}"


def _places(line: str) -> Iterator[str]:
    """Yields the lines of files that a line names; a path may have spaces."""
    for found in MARKS[0][0].finditer(line):
        words = re.split(r"(?<=[ (])", line[: found.end()])
        for n in range(len(words) - 1, -1, -1):
            place = "".join(words[n:])
            if os.path.isfile(place.rpartition(":")[0]):
                yield place
                break


def _file(path: str) -> str:
    """A file as the repository names it."""
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    inside = os.path.join(os.path.realpath(root), "")
    return os.path.realpath(path).removeprefix(inside).replace(os.sep, "/")


def _escaped(text: str, more: str = "") -> str:
    for character in ("%", "\r", "\n", *more):
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def of_run(error: BaseException | None, lines: Sequence[str]) -> str:
    """What a run found, as JSON: the error that ended it, and what compiled again."""
    data: dict[str, Any] = {"error": None, "compiled_again": [*lines]}
    if error is not None:
        rows = getattr(error, "dtypeguard_rows", ())
        data["error"] = {
            "type": type(error).__name__,
            "message": str(error),
            "note": next(notes(error), ""),
            "leaves": [row._asdict() for row in rows],
        }
    return _json(data)


def notes(error: BaseException) -> Iterator[str]:
    """The notes of dtypeguard on an error and on those that it is printed with."""
    for part in printed(error):
        own = (str(x) for x in getattr(part, "__notes__", ()))
        yield from (x for x in own if x.startswith("dtypeguard: "))
