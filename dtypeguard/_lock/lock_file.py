"""A lock as a TOML file: written and read."""

import itertools
from collections import Counter
from typing import Any

from .._autocast.toml import quoted, read_toml, toml_key, toml_line, toml_list
from .computations import ENTRY_KINDS, LockEntries
from .step import TABLES, Lock

_FORMAT = 2
# Without it, a merge or a full disk has cut the file.
_END = "# End of the lock."


class LockError(ValueError):
    """A lock that cannot be used; the message says what to do."""


def lock_text(lock: Lock) -> str:
    """Returns a lock as TOML."""
    lines = [
        f"# What {lock.step} computes in, by function. Written by `dtypeguard lock`.",
        "# `bfloat16 @ bfloat16 -> float32 (2)`: what two calls take, and what they give; "
        "one type: both.",
        f"format = {_FORMAT}",
        toml_line("step", lock.step),
    ]
    for (file, function), entries in lock.functions.items():
        key_of_file = quoted(file)
        key = toml_key(function)
        lines += ["", f"[{key_of_file}.{key}]"]
        for kind in ENTRY_KINDS:
            items = []
            # Sorted, a moved line of the program is no change of the file.
            for text, count in sorted(entries[kind].items()):
                if count > 1:
                    text += f" ({count})"
                items.append(text)
            if items:
                line = toml_list(kind, items)
                lines.append(line)
    for table in TABLES:
        types = lock.types[table]
        if types:
            lines += ["", f"[{table}]"]
            lines += itertools.starmap(toml_line, types.items())
    lines += ["", _END, ""]
    return "\n".join(lines)


def read_lock(path: str) -> Lock:
    """Reads the lock in a file.

    Raises:
        LockError: if there is none, or it is damaged.
    """
    try:
        return _lock_of_data(read_toml(path, "format", _FORMAT, _END))
    except OSError as error:
        raise LockError(
            f"{path} cannot be read: {error.strerror}. Write it with --out {path}."
        ) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # also of TOML
        raise LockError(
            f"{path} cannot be used: {type(error).__name__}: {error}. Restore it, or "
            "remove it and write anew; in a merge conflict take either side and update."
        ) from None


def _lock_of_data(data: dict[str, Any]) -> Lock:
    del data["format"]
    step = str(data.pop("step"))
    types = {}
    for table in TABLES:
        types[table] = dict(data.pop(table, {}))
    functions = {}
    # All other tables are files.
    for file, tables in data.items():
        for function, lines in tables.items():
            functions[file, function] = _entries(lines)
    return Lock(step, functions, types)


def _entries(lines: dict[str, list[str]]) -> LockEntries:
    """Returns the entries of a function. Other keys are for what later versions say."""
    entries = LockEntries(Counter)
    for kind in ENTRY_KINDS:
        for item in lines.get(kind, ()):
            inner = item.removesuffix(")")
            text, _, count = inner.rpartition(" (")
            if not count.isdecimal():
                text = item
                count = "1"
            entries[kind][text] = int(count)
    return entries
