"""TOML as dtypeguard writes it: Python reads it by `tomllib`, and has no writer."""

import json
import re
import tomllib
from typing import Any


def read_toml(path: str, key: str, version: int, end: str = "") -> dict[str, Any]:
    """Reads a file that has its version under a key, and a last line.

    Raises:
        ValueError: if it is damaged, or of another version.
    """
    # Some editors begin a file with a byte order mark.
    with open(path, encoding="utf-8-sig") as file:
        text = file.read()
    data = tomllib.loads(text)
    # First of all: another version may have other keys.
    file_version = data.get(key)
    if file_version != version:
        raise ValueError(
            f"it has {key} {file_version!r}, and this dtypeguard reads {key} {version}"
        )
    if not text.rstrip().endswith(end):
        raise ValueError("its last line is missing")
    return data


def quoted(text: str) -> str:
    """Returns a TOML string, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)


def toml_key(name: str) -> str:
    """Returns a TOML key, bare if it may be."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return name
    return quoted(name)


def toml_line(name: str, text: str) -> str:
    """Returns a line that gives a key a string."""
    key = toml_key(name)
    return f"{key} = {quoted(text)}"


def toml_list(name: str, texts: list[str]) -> str:
    """Returns a line that gives a key a list of strings."""
    items = ", ".join(map(quoted, texts))
    key = toml_key(name)
    return f"{key} = [{items}]"
