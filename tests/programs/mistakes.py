"""Mistakes that people make, each as a change to the lines of a program.

They are in `mistakes.txt`, one after the other:

    == program configuration remedy: what the mistake is
    - a line of the program
    + what stands there with the mistake
    says: what dtypeguard is to print
    - a line of the program with the mistake
    + what the advice makes of it; left out where the advice is a guard
    not named: why no note names the line at fault
    not advised: why what is printed does not mend it

The line at fault ends with the comment `# the mistake`. A program that fails as it is has
no lines to change.
"""

import pathlib
from typing import NamedTuple

Change = list[tuple[str, str]]


class Mistake(NamedTuple):
    """A program that fails or drifts.

    Attributes:
        program: the name of its file.
        configuration: where it shows.
        remedy: "guard" or "guard_step" where that mends it best, and "source" where only
            an edit of the program does.
        name: of the mistake, for people.
        change: old lines and new lines. Empty for a program that fails as it is.
        advice: what dtypeguard is to print.
        fix: old lines and new lines, as the advice says; empty where it is a guard.
        not_named: why no note names the line at fault; empty if one does.
        not_advised: why what is printed does not mend it; empty if it does.
    """

    program: str
    configuration: str
    remedy: str
    name: str
    change: Change
    advice: str
    fix: Change
    not_named: str
    not_advised: str

    @property
    def is_planted(self) -> bool:
        """Whether the program runs without it."""
        return bool(self.change)

    @property
    def id(self) -> str:
        """The name of its test."""
        return f"{self.program}-{self.configuration}-{self.name.replace(' ', '_')}"


def _read(text: str) -> Mistake:
    head, *lines = text.strip("\n").splitlines()
    kind, _, name = head.partition(": ")
    at = next(n for n, line in enumerate(lines) if line.startswith("says: "))
    told = dict(line.split(": ", 1) for line in lines[at:] if line[:2] not in ("- ", "+ "))
    return Mistake(
        *kind.split(),
        name=name,
        change=changes(lines[:at]),
        advice=told["says"],
        fix=changes(lines[at:]),
        not_named=told.get("not named", ""),
        not_advised=told.get("not advised", ""),
    )


def changes(lines: list[str]) -> Change:
    """Lines to be replaced, each run of them with those that follow."""
    found: list[tuple[list[str], list[str]]] = []
    for line in lines:
        if line.startswith("- "):
            if not found or found[-1][1]:
                found.append(([], []))
            found[-1][0].append(line[2:])
        elif line.startswith("+ "):
            found[-1][1].append(line[2:])
    return [("\n".join(old), "\n".join(new)) for old, new in found]


_FILE = pathlib.Path(__file__).with_suffix(".txt")
MISTAKES = [_read(text) for text in _FILE.read_text().split("== ")[1:]]
