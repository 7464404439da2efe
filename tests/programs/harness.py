"""The mistakes that people make in the programs, as changes to their lines.

A program is a file beside this one with one function, `train(dtype, opt, step)`: `dtype` is
its own knob, `opt` stands where its author would write `dtypeguard.guard`, and `step` where
`dtypeguard.guard_step`. It returns its losses, its first carry, its last, and how often
what it hands to `jit` was traced.

In `mistakes.txt` a change stands below where it shows and what mends it best: "guard",
"guard_step", or "source" where only an edit of the program does. The line at fault ends
with the comment `# the mistake`. A program that fails as it is has no lines to change.
"""

import itertools
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp

HERE = pathlib.Path(__file__).parent
# The dtype of a program, and whether x64 is on.
CONFIGURATIONS = {
    "float32": (jnp.float32, False),
    "bfloat16": (jnp.bfloat16, False),
    "x64": (jnp.float32, True),
}


class Mistake(NamedTuple):
    """A program that fails or drifts."""

    program: str
    configuration: str
    remedy: str
    name: str
    text: str


def mistakes(file: str = "mistakes.txt") -> Iterator[tuple[str, str, list[str]]]:
    """The head of each mistake of a file, its name, and the lines that change."""
    for text in (HERE / file).read_text().split("== ")[1:]:
        head, *lines = text.strip("\n").splitlines()
        kind, _, name = head.partition(": ")
        yield kind, name, lines


def changed(path: pathlib.Path, lines: list[str]) -> str:
    """The text of a program with lines after "- " replaced by those after "+ " below."""
    text = f"\n{path.read_text()}"
    runs = [
        "".join(f"\n{line[2:]}" for line in some) + "\n"
        for _, some in itertools.groupby(lines, key=lambda line: line[0])
    ]
    for old, new in zip(runs[::2], runs[1::2]):
        if text.count(old) != 1:
            raise ValueError(f"not once in {path.name}: {old}")
        text = text.replace(old, new)
    return text[1:]


MISTAKES = [
    Mistake(*kind.split(), name, changed(HERE / f"{kind.split()[0]}.py", lines))
    for kind, name, lines in mistakes()
]
