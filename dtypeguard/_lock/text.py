"""Writes a lock as TOML, and reads it."""

import json
import re
import tomllib
from collections import Counter
from typing import Any

from .computations import KINDS, Function, LockEntry
from .step import Lock

_FORMAT = 2
_WIDTH = 100
_END = "# End of the lock."
_COUNT = re.compile(r"(.*) \((\d+)\)")
_TABLES = "inputs", "outputs"


class LockError(ValueError):
    """A lock that cannot be used; the message says what to do."""


def text_of(lock: Lock) -> str:
    """The lock as TOML."""
    lines = [
        f"# What {lock.step} computes in, by function. Written by `dtypeguard lock`.",
        "# `bfloat16 @ bfloat16 -> float32 (2)`: what two calls take, and what they give; "
        "one type: both.",
        f"format = {_FORMAT}",
        f"step = {_quoted(lock.step)}",
    ]
    for (file, function), entries in lock.functions.items():
        lines += ["", f"[{_quoted(file)}.{_key(function)}]"]
        for kind in KINDS:
            counts = Counter(sorted(x.text for x in entries if x.kind == kind))
            lines += _array(kind, counts) if counts else []
    for table in _TABLES:
        if types := getattr(lock, table):
            lines += ["", f"[{table}]"]
            lines += [f"{_key(path)} = {_quoted(name)}" for path, name in types.items()]
    return "\n".join([*lines, "", _END, ""])


def _array(key: str, counts: Counter[str]) -> list[str]:
    """Types, and how many calls compute so."""
    items = [_quoted(f"{x} ({n})" if n > 1 else x) for x, n in counts.items()]
    line = f"{key} = [{', '.join(items)}]"
    return (
        [line] if len(line) <= _WIDTH else [f"{key} = [", *(f"  {x}," for x in items), "]"]
    )


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def read(path: str) -> Lock:
    """Reads the lock in a file."""
    again = (
        f"Restore {path}, with `git checkout` for example, or remove it and write anew; in "
        "a merge conflict take either side and update."
    )
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        data = tomllib.loads(text)
        lock = _lock(data) if data.get("format") == _FORMAT else None
    except FileNotFoundError:
        raise LockError(f"{path} does not exist. Write it with --out {path}.") from None
    except OSError as error:
        raise LockError(f"{path} cannot be read: {error}.") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # also of TOML
        reason = f"{type(error).__name__}: {error}"
        raise LockError(f"{path} is damaged: {reason}. {again}") from None
    if lock is None:
        raise LockError(
            f"{path} has format {data.get('format')}; this dtypeguard reads format "
            f"{_FORMAT}. Use the dtypeguard that wrote it, or remove it and write anew."
        )
    if not text.rstrip().endswith(_END):
        raise LockError(f"{path} is cut off: its last line is missing. {again}")
    return lock


def _lock(data: dict[str, Any]) -> Lock:
    tables = {name: dict(data.get(name, {})) for name in _TABLES}
    functions: dict[Function, list[LockEntry]] = {}
    for file, inside in data.items():
        if file in (*_TABLES, "format", "step"):
            continue
        for function, kinds in inside.items():
            # Other keys are for what later versions say of a line.
            functions[file, function] = [
                LockEntry(kind, text)
                for kind in KINDS
                for item in kinds.get(kind, ())
                for text in _repeated(item)
            ]
    return Lock(str(data["step"]), functions, **tables)


def _repeated(item: str) -> list[str]:
    counted = _COUNT.fullmatch(item)
    return [counted[1]] * int(counted[2]) if counted else [item]


def write(path: str, text: str) -> None:
    """Writes a file."""
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise LockError(f"{path} cannot be written: {error.strerror}.") from None
