"""Delivers what a command finds: as text, as JSON, and as annotations of GitHub.

All three are made from one record.
"""

import argparse
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from .._explain.unfiltered import printed
from .._precision.rows import plain
from .._source.files import is_installed
from .._source.origin import Origin
from .output import print_text, write_file

# As a file the last two are standard error: all but the report goes there.
_STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1")


@dataclasses.dataclass(frozen=True)
class CommandResult:
    """What a command has found.

    Attributes:
        text: that is printed; its first line is the headline.
        record: the lines of source in its fields are annotated on GitHub.
        json: for programs.
        is_ok: whether the exit status is 0.
    """

    text: str
    record: object
    json: str
    is_ok: bool


def deliver(result: CommandResult, options: argparse.Namespace, stdout: TextIO) -> int:
    """Prints a result in the form that is asked for, and returns the exit status."""
    status = 0 if result.is_ok else 1
    form = options.format
    if options.json in _STANDARD_OUTPUT:
        form = "json"
    elif options.json is not None:
        write_file(options.json, result.json)
    # A file and text on the terminal go together; JSON that is printed stands alone.
    if form == "json":
        print_text(result.json.rstrip(), stdout)
        return status
    print_text(result.text.rstrip(), stdout)
    if form == "github":
        level = "warning" if result.is_ok else "error"
        for line in annotations(result.text, level, result.record):
            print_text(line, stdout)
    return status


def as_json(data: Any) -> str:
    """Returns data as JSON, records by their fields."""
    return json.dumps(plain(data), indent=1)


# GitHub ----------------------------------------------------------------------------------


def annotations(text: str, level: str, record: object) -> Iterator[str]:
    """Yields the commands with which GitHub shows a report beside lines of source.

    All of the report stands at the first of the user's lines, its headline at the others.
    An error without a line is shown above the files.

    Args:
        text: the report.
        level: "error" or "warning".
        record: what has the lines in its fields.

    References:
        GitHub Docs, "Workflow commands for GitHub Actions",
        https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    """
    lines = {}
    for origin in _origins_in(record):
        # A package's lines are in no pull request.
        if not is_installed(origin.users.file):
            lines[str(origin.users)] = origin.users
    headline = text.partition("\n")[0]
    title = f"title=dtypeguard%3A {_escaped(headline.partition(': ')[2] or headline, ':,')}"
    if not lines and level == "error":
        yield f"::{level} {title}::{_escaped(text)}"
    message = text
    for line in lines.values():
        file = _escaped(_path_in_repository(line.file), ":,")
        yield f"::{level} file={file},line={line.line},{title}::{_escaped(message)}"
        message = headline


def _origins_in(record: object) -> Iterator[Origin]:
    """Yields the lines of source in the fields of a record, in their order."""
    if isinstance(record, Origin):
        yield record
    # Named tuples among them: `error.dtypeguard_rows` has lines in their fields.
    elif isinstance(record, (list, tuple)):
        for item in record:
            yield from _origins_in(item)
    elif dataclasses.is_dataclass(record):
        for field in dataclasses.fields(record):
            yield from _origins_in(getattr(record, field.name))


def _path_in_repository(file: str) -> str:
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    # Links in the path of a runner's workspace lead to other names of one file.
    folder = os.path.join(os.path.realpath(root), "")
    path = os.path.realpath(file).removeprefix(folder)
    return pathlib.PurePath(path).as_posix()


def _escaped(text: str, more: str = "") -> str:
    # The percent sign first, which the others are written with.
    for character in ("%", "\r", "\n", *more):
        text = text.replace(character, f"%{ord(character):02X}")
    return text


# What `dtypeguard run` finds -------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ErrorNote:
    """A note of dtypeguard on an error, and the leaves that it is about."""

    text: str
    leaves: Sequence[Any]


def notes_on(error: BaseException | None) -> list[ErrorNote]:
    """Returns the notes of dtypeguard on an error and on its causes."""
    notes = []
    if error is None:
        return notes
    for part in printed(error):
        leaves = getattr(part, "dtypeguard_rows", ())
        for text in map(str, getattr(part, "__notes__", ())):
            if text.startswith("dtypeguard: "):  # others add notes too
                notes.append(ErrorNote(text, leaves))
    return notes


def json_of_run(error: BaseException | None, lines: Sequence[str]) -> str:
    """Returns the error that ended a run, and what was compiled again, for programs."""
    data: dict[str, Any] = {"error": None, "compiled_again": list(lines)}
    if error is not None:
        data["error"] = {
            "type": type(error).__name__,
            "message": str(error),
            "notes": notes_on(error),
        }
    return as_json(data)
