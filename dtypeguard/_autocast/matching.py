"""From an equation to the entry of a plan, by the source of its line.

The search writes entries by `key_of_line`, and `autocast` reads them by it, so that a plan
that was found is a plan that matches.
"""

import ast
import difflib
import fnmatch
import functools
import os
from typing import NamedTuple

from .._program.jaxprs import Stack
from .._source.files import file_text, is_installed, short_path
from .._source.syntax import expression, parse_quietly
from .._tracebacks.frames import calls_by_jaxpr
from .._tracebacks.written import Written
from .plan import Plan, PlanEntry, PlanError


class MatchedLine(NamedTuple):
    """Where an equation comes from, as plans name it.

    Attributes:
        place: the user's file and function; "" if no line of the user's led to it.
        expression: the text of the expression; None if the source is not known.
        scope: of `jax.named_scope`; "" outside of all.
    """

    place: str
    expression: str | None
    scope: str

    @property
    def loose(self) -> "MatchedLine":
        """What entries tell apart: the same with any number for each of its floats."""
        return self._replace(expression=_loose(self.expression or ""))

    def __str__(self) -> str:
        return self.place if self.expression is None else f"{self.place}: {self.expression}"


def key_of_line(stack: Stack) -> MatchedLine:
    """The function and the expression of the user's that an equation comes from.

    Lines in packages count for the user's line that calls them, and the backward pass of a
    line for the line.
    """
    scope = "/".join(Written(stack).scope)
    for calls in calls_by_jaxpr(stack):
        for call in calls:
            if not is_installed(call[0].co_filename):
                return MatchedLine(*_place_and_text(*call), scope)
    return MatchedLine("", None, scope)


@functools.lru_cache(10_000)
def _place_and_text(code, instruction: int) -> tuple[str, str | None]:
    names = [name for name in code.co_qualname.split(".") if not name.startswith("<")]
    place = f"{file_name(code.co_filename)}:{'.'.join(names) or '<module>'}"
    node = expression(code, instruction)
    return place, None if node is None else ast.unparse(node)


@functools.cache
def file_name(file: str) -> str:
    """A file as plans name it: from the working directory, elsewhere by its name alone.

    All cells of a notebook are one file.
    """
    name = short_path(file)
    if file_text(file) != name:
        return "<cell>"
    name = os.path.basename(name) if os.path.isabs(name) else name
    return name.replace(os.sep, "/")


class Matcher:
    """Finds the entry of each equation, and remembers which entries were found."""

    def __init__(self, plan: Plan):
        self._entries = plan.entries
        self._known: dict[MatchedLine, PlanEntry | None] = {}
        self._found: set[int] = set()

    def entry(self, stack: Stack) -> PlanEntry | None:
        """The entry of an equation: of its expression before that of its function."""
        if not self._entries:
            return None
        line = key_of_line(stack)
        if line not in self._known:
            numbers = [n for n, x in enumerate(self._entries) if matches(x, line)]
            self._found.update(numbers)
            best = max(numbers, key=self._weight, default=None)
            self._known[line] = None if best is None else self._entries[best]
        return self._known[line]

    def _weight(self, number: int) -> tuple[bool, int, int]:
        entry = self._entries[number]
        return entry.expression is not None, len(entry.place), len(entry.scope or "")

    def check(self) -> None:
        """Checks that each entry has matched an equation.

        Raises:
            ValueError: names all that did not, with the nearest line of the program.
        """
        missed = [x for n, x in enumerate(self._entries) if n not in self._found]
        rows = [f"  {entry}{self._nearest(entry)}" for entry in missed]
        count = f"{len(missed)} of {len(self._entries)} entries of the plan"
        if rows:
            raise PlanError("\n".join([f"{count} match nothing in this program:", *rows]))

    def _nearest(self, entry: PlanEntry) -> str:
        """What to write in place of an entry that matches nothing."""
        scoped = lambda scope: f" in scope {scope}" if entry.scope and scope else ""
        named = lambda line: line.place if entry.expression is None else str(line)
        names = {named(x) + scoped(x.scope) for x in self._known if x.place}
        nearest = difflib.get_close_matches(str(entry), sorted(names), 1, 0.0)
        return "".join(f': the nearest there is "{name}"' for name in nearest)


def matches(entry: PlanEntry, line: MatchedLine) -> bool:
    """Whether an entry of a plan names a line."""
    scope, text = entry.scope, entry.expression
    if scope not in (None, line.scope) and not _is_in_scope(str(scope), line.scope):
        return False
    if text is not None and _loose(text) != _loose(line.expression or ""):
        return False
    return _is_place(entry.place, line.place)


def _is_place(written: str, place: str) -> bool:
    """Whether a place is the written one, or a function inside of that.

    The root of the project may be another.
    """
    (file, _, function), (own, _, within) = (x.partition(":") for x in (written, place))
    is_file = file == own or own.endswith(f"/{file}") or file.endswith(f"/{own}")
    is_inside = not function or within == function or within.startswith(f"{function}.")
    return bool(own) and is_file and is_inside


def _is_in_scope(written: str, scope: str) -> bool:
    names, inside = written.split("/"), scope.split("/")
    fits = lambda start: all(map(fnmatch.fnmatchcase, inside[start:], names))
    return any(fits(start) for start in range(len(inside) - len(names) + 1))


@functools.lru_cache(10_000)
def _loose(text: str) -> str:
    """The text of an expression with `?`, which is any number, for each of its floats."""
    try:
        tree = parse_quietly(text.strip().replace("?", _ANY))
    except SyntaxError:
        return text.strip()
    return ast.unparse(_WithoutFloats().visit(tree))


_ANY = "any_number"


class _WithoutFloats(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Name(_ANY) if type(node.value) is float else node
