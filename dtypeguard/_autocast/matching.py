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

_ANY_NUMBER = "any_number"


def key_of_line(stack: Stack) -> PlanEntry:
    """Returns the user's function and expression that an equation comes from.

    Lines in packages count for the user's line that calls them, and the backward pass of a
    line for the line. The place is "" if no line of the user's led to the equation.
    """
    scope = "/".join(Written(stack).scope)
    for calls in calls_by_jaxpr(stack):
        for code, instruction in calls:
            if is_installed(code.co_filename):
                continue
            line = _line_of_code(code, instruction)
            return dataclasses.replace(line, scope=scope)
    return PlanEntry("", scope=scope)


@functools.lru_cache(10_000)
def _line_of_code(code: CodeType, instruction: int) -> PlanEntry:
    file = file_name(code.co_filename)
    place = f"{file}:{function_name(code)}"
    node = expression(code, instruction)
    if node is None:
        return PlanEntry(place)
    # Unparsed, spaces, brackets and line breaks of the source do not matter.
    return PlanEntry(place, ast.unparse(node))


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

    def note(self, stack: Stack, reason: str) -> None:
        """Notes a line that computes as written though the plan makes it narrow."""
        line = key_of_line(stack).key
        if not line:
            line = "inside JAX"
        self.notes[f"{line}: kept {reason}"] = None

    def entry(self, stack: Stack) -> PlanEntry | None:
        """Returns the entry of an expression, or of the function that it is in."""
        entries = self.plan.entries
        if not entries:
            return None
        line = key_of_line(stack)
        if line not in self._entry_of_line:
            matching = []
            for entry in entries:
                if matches(entry, line):
                    matching.append(entry)
            self._matched.update(matching)
            # An entry of an expression is an exception from that of its function. Of two
            # that say as much, the last one counts.
            self._entry_of_line[line] = max(
                reversed(matching),
                key=lambda entry: (bool(entry.expression), len(str(entry))),
                default=None,
            )
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
            row = f"  {entry}"
            names = self._names_like(entry)
            # Even a poor match shows how lines of this program are named.
            text = str(entry)
            nearest = difflib.get_close_matches(text, names, n=1, cutoff=0.1)
            for name in nearest:
                row += f': the nearest there is "{name}"'
            rows.append(row)
        if not rows:
            return
        count = f"{len(rows)} of {len(entries)} entries"
        head = f"{count} of the plan match nothing in this program:"
        lines = [head, *rows]
        raise PlanError("\n".join(lines))

    def _names_like(self, entry: PlanEntry) -> list[str]:
        """Returns the lines of the program, named as an entry names one."""
        unnamed = {}
        for name in ("expression", "scope"):
            if not vars(entry)[name]:
                unnamed[name] = ""
        names = set()
        for line in self._entry_of_line:
            like_entry = dataclasses.replace(line, **unnamed)
            names.add(str(like_entry))
        return sorted(names)


def matches(entry: PlanEntry, line: PlanEntry) -> bool:
    """Returns whether an entry of a plan names a line."""
    if entry.scope and f"/{entry.scope}/" not in f"/{line.scope}/":
        return False
    text = without_floats(entry.expression)
    if text and text != without_floats(line.expression):
        return False
    entry_file, _, entry_function = entry.place.partition(":")
    file, _, function = line.place.partition(":")
    # The plan may have been written from another folder of the project.
    files = [f"/{entry_file}", f"/{file}"]
    shorter, longer = sorted(files, key=len)
    if not longer.endswith(shorter):
        return False
    # A function may be inside of that of the entry.
    return f"{function}.".startswith(f"{entry_function}.")


@functools.lru_cache(10_000)
def without_floats(text: str) -> str:
    """Returns the text of an expression with `?`, any number, for each of its floats."""
    text = text.strip()
    try:
        tree = parse_quietly(text.replace("?", _ANY_NUMBER))
    except SyntaxError:
        return text
    return ast.unparse(_FloatRemover().visit(tree))


class _FloatRemover(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        # An int is an axis or a size, by which expressions differ; a float is tuned.
        if type(node.value) is float:
            return ast.Name(_ANY_NUMBER)
        return node
