"""Finds the notes on errors, the lines that they name, and writes what they say."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import pytest

import dtypeguard
from dtypeguard._source.files import short_path as short_path


def raised(
    call: Callable[[], Any], context: Callable[[], Any] = dtypeguard.explain
) -> BaseException | None:
    """The error that leaves a context; None if there is none."""
    try:
        with context():
            call()
    except Exception as error:
        return error
    return None


def notes(error: BaseException | None) -> list[str]:
    """What dtypeguard added to an error."""
    return [n for n in getattr(error, "__notes__", ()) if n.startswith("dtypeguard: ")]


def note_on(program: Callable[[], Any]) -> str:
    """The note on what a program raises."""
    (note,) = notes(raised(program))
    return note


def line(file: str, mark: str) -> str:
    """The line of a file that ends with a mark, as notes write it."""
    lines = pathlib.Path(file).read_text().splitlines()
    (number,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# {mark}")]
    return f"{pathlib.Path(file).relative_to(pathlib.Path.cwd())}:{number}"


def of_a_package(source: str) -> dict[str, Any]:
    """What a file beside pytest defines, which is a package to the notes."""
    names = {"jax": jax, "lax": jax.lax}
    exec(compile(source, f"{pytest.__file__}.py", "exec"), names)
    return names
