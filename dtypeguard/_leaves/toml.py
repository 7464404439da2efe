"""TOML as dtypeguard writes it: Python reads it by `tomllib`, and has no writer."""

import json
import re


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
    return f"{toml_key(name)} = {quoted(text)}"


def toml_list(name: str, texts: list[str]) -> str:
    """Returns a line that gives a key a list of strings."""
    items = ", ".join(map(quoted, texts))
    return f"{toml_key(name)} = [{items}]"
