"""From an equation to the entry of a plan, by the source of its line.

The search writes entries by `key_of_line`, and `autocast` reads them by it, so that a plan
that was written for a program matches it.
"""

import ast
import dataclasses
import difflib
import functools
import pathlib
from types import CodeType

from .._program.jaxprs import Stack
from .._source.files import file_text, is_installed, short_path
from .._source.origin import function_name
from .._source.syntax import expression, parse_quietly
from .._tracebacks.frames import calls_by_jaxpr
from .._tracebacks.written import Written
from .plan import Plan, PlanEntry, PlanError


def key_of_line(stack: Stack) -> PlanEntry:
    """Returns the user's function and expression that an equation comes from.

    Lines in packages count for the user's line that calls them, and the backward pass of a
    line for the line. The place is "" if no line of the user's led to the equation.
    """
    names = Written(stack).scope
    scope = "/".join(names)
    for calls in calls_by_jaxpr(stack):
        for code, instruction in calls:
            if not is_installed(code.co_filename):
                line = _line_of_code(code, instruction)
                return dataclasses.replace(line, scope=scope)
    return PlanEntry("", scope=scope)


@functools.lru_cache(10_000)
def _line_of_code(code: CodeType, instruction: int) -> PlanEntry:
    text = ""
    node = expression(code, instruction)
    # Unparsed, spaces, brackets and line breaks of the source do not matter.
    if node is not None:
        text = ast.unparse(node)
    file = file_name(code.co_filename)
    function = function_name(code)
    place = f"{file}:{function}"
    return PlanEntry(place, text)


@functools.cache
def file_name(file: str) -> str:
    """Returns a file as plans name it: from the working directory, or its name alone.

    All cells of a notebook are one file.
    """
    name = short_path(file)
    # IPython gives each cell a file with another number in its name.
    if file_text(file) != name:
        return "<cell>"
    path = pathlib.PurePath(name)
    if path.is_absolute():
        return path.name
    return path.as_posix()


class PlanUse:
    """A plan, its entries by line, and notes of where it is not followed.

    Attributes:
        plan: the plan.
        notes: the lines that compute as written though the plan makes them narrow.
        has_product: whether a program has a product, narrow or not.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.notes: dict[str, None] = {}
        self.has_product = False
        self._entry_of_line = {}
        self._matched = set()
        # An entry of an expression is an exception from that of its function. Of two that
        # say as much, the last one counts.
        self._entries = sorted(
            plan.entries, key=lambda entry: (bool(entry.expression), len(str(entry)))
        )

    def note(self, stack: Stack, reason: str) -> None:
        """Notes a line that computes as written though the plan makes it narrow."""
        line = key_of_line(stack).key
        if not line:
            line = "inside JAX"
        self.notes[f"{line}: kept by {reason}"] = None

    def entry(self, stack: Stack) -> PlanEntry | None:
        """Returns the entry of an expression, or of the function that it is in."""
        if not self._entries:
            return None
        line = key_of_line(stack)
        if line not in self._entry_of_line:
            self._entry_of_line[line] = None
            for entry in self._entries:
                if matches(entry, line):
                    self._matched.add(entry)
                    self._entry_of_line[line] = entry
        return self._entry_of_line[line]

    def check(self) -> None:
        """Checks that each entry has matched an equation.

        Raises:
            ValueError: names all that did not, with the nearest line of the program.
        """
        entries = self.plan.entries
        rows = []
        for entry in entries:
            if entry in self._matched:
                continue
            text = str(entry)
            row = f"  {text}"
            names = self._names_like(entry)
            # Even a poor match shows how lines of this program are named.
            for name in difflib.get_close_matches(text, names, n=1, cutoff=0.1):
                row += f': the nearest there is "{name}"'
            rows.append(row)
        if not rows:
            return
        count = f"{len(rows)} of {len(entries)} entries of the plan"
        lines = [f"{count} match nothing in this program:", *rows]
        raise PlanError("\n".join(lines))

    def _names_like(self, entry: PlanEntry) -> list[str]:
        """Returns the lines of the program, named as an entry names one."""
        names = set()
        for line in self._entry_of_line:
            if not entry.expression:
                line = dataclasses.replace(line, expression="")
            if not entry.scope:
                line = dataclasses.replace(line, scope="")
            names.add(str(line))
        return sorted(names)


def matches(entry: PlanEntry, line: PlanEntry) -> bool:
    """Returns whether an entry of a plan names a line."""
    if entry.scope and f"/{entry.scope}/" not in f"/{line.scope}/":
        return False
    text = without_floats(entry.expression)
    if text not in ("", without_floats(line.expression)):
        return False
    entry_file, _, entry_function = entry.place.partition(":")
    file, _, function = line.place.partition(":")
    # A function may be inside of that of the entry.
    inner_names = function + "."
    if not inner_names.startswith(entry_function + "."):
        return False
    # The plan may have been written from another folder of the project.
    files = ["/" + entry_file, "/" + file]
    shorter, longer = sorted(files, key=len)
    return longer.endswith(shorter)


@functools.lru_cache(10_000)
def without_floats(text: str) -> str:
    """Returns the text of an expression with one number for all floats and each `?`."""
    text = text.strip()
    try:
        tree = parse_quietly(text.replace("?", "0.0"))
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        # An int is an axis or a size, by which expressions differ; a float is tuned.
        if isinstance(node, ast.Constant) and type(node.value) is float:
            node.value = 0.0
    return ast.unparse(tree)
