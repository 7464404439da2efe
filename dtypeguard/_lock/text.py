"""Writes a lock as TOML, and reads it."""

import contextlib
import json
import os
import re
import tempfile
import tomllib
from collections import Counter
from typing import Any

import jax

from .computations import KINDS, Function, LockEntry
from .step import Lock

_FORMAT = 1
_WIDTH = 100
_END = "# End of the lock."
_COUNT = re.compile(r"(.*) \((\d+)\)")
_TABLES = "inputs", "carry", "outputs"


class LockError(ValueError):
    """A lock that cannot be used; the message says what to do."""


def text_of(lock: Lock) -> str:
    """The lock as TOML."""
    lines = [
        f"# What {lock.step} computes in, by function. Written by `dtypeguard lock` with "
        f"JAX {jax.__version__}.",
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
    again = f"Restore {path}, with `git checkout` for example, or remove it and write anew."
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for number, line in enumerate(text.splitlines(), start=1):
            if line.startswith(("<<<<<<<", "=======", ">>>>>>>")):
                raise LockError(
                    f"{path} has a merge conflict in line {number}. Take either side, then "
                    "update the lock: it writes what the merged code computes in."
                )
        data = tomllib.loads(text)
        if data.get("format") != _FORMAT:
            raise LockError(
                f"{path} has format {data.get('format')}; this dtypeguard reads format "
                f"{_FORMAT}. Use the dtypeguard that wrote it, or remove it and write anew."
            )
        if not text.rstrip().endswith(_END):
            raise LockError(f"{path} is cut off: its last line is missing. {again}")
        return _lock(data)
    except LockError:
        raise
    except FileNotFoundError:
        raise LockError(f"{path} does not exist. Write it with --out {path}.") from None
    except OSError as error:
        raise LockError(f"{path} cannot be read: {error}.") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # also of TOML
        reason = f"{type(error).__name__}: {error}"
        raise LockError(f"{path} is damaged: {reason}. {again}") from None


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
    """Writes a file whole, or leaves it as it is."""
    folder = os.path.dirname(os.path.abspath(path))
    with contextlib.ExitStack() as cleanup:
        try:
            handle, temporary = tempfile.mkstemp(dir=folder)
            cleanup.callback(_remove, temporary)
            with open(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            if os.path.exists(path):
                os.chmod(temporary, os.stat(path).st_mode)
            else:
                os.umask(mask := os.umask(0))
                os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, path)
        except OSError as error:
            raise LockError(f"{path} cannot be written: {error.strerror}.") from None


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(path)
