"""Takes the paths of leaves apart, as `jax.tree_util.keystr` prints them."""

import re

_PART = re.compile(r"""\[(?:'[^']*'|"[^"]*"|[^\]]*)\]|\.?[^.\[]+""")


def parts(path: str) -> list[str]:
    """The parts of a path as they are written: `carry`, `[1]`, `.mu`, `['w']`."""
    return _PART.findall(path)


def keys(path: str) -> list[str]:
    """The parts of a path without their signs: `carry`, `1`, `mu`, `w`."""
    # JAX numbers the parts of a node without keys in two ways.
    numbered = (part.replace("<flat index ", "").strip(".[]<>") for part in parts(path))
    return [key[1:-1] if key[:1] in ("'", '"') else key for key in numbered]


def parameter(path: str) -> str:
    """The name of the parameter that a path begins with."""
    return next(iter(keys(path)), "")


def indices(path: str) -> list[str]:
    """The keys and numbers in the brackets of a path, as source: `1`, `'w'`."""
    return [part[1:-1] for part in parts(path) if part[0] == "["]
