"""The user's own expressions: the one behind a leaf, and what to write in place of it."""

import ast
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import NamedTuple

from .._leaves.rows import cast_text
from .._leaves.types import DType
from .._source.files import is_users
from .._source.origin import Origin, origin_at
from .._source.syntax import encloses, item, returned, span, statement, text_of
from .rewritten import text_with

_LONG = 60  # an expression with more characters is not written out
_WIDE = 90  # nor one around another
_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
_DISPLAYS = (ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Lambda)
_REPEATED = (ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)
# Functions that return no array, but what holds some.
_CONTAINERS = {"list", "tuple", "dict", "zip", "sorted", "map", "tree_map"}


class Expression(NamedTuple):
    """An expression of the user's that computes a leaf.

    Attributes:
        node: the expression.
        file: that has it.
        is_result: whether it is what a function returns.
        is_repeated: whether it may compute several leaves, of other types too.
    """

    node: ast.expr
    file: str
    is_result: bool = False
    is_repeated: bool = False

    @property
    def line(self) -> Origin:
        """The line that it is on."""
        return origin_at(self.file, self.node.lineno, "")

    @property
    def text(self) -> str:
        """The expression as it is written."""
        return text_of(self.node, self.file)

    @property
    def operand(self) -> str:
        """Its text where another expression is written around it."""
        return atom(self.node, self.text)

    def cast(self, dtype: DType, *, is_alone: bool = True) -> str:
        """A cast of it in place of it."""
        return in_place(self.replaced(cast_text(dtype, self.operand), is_alone=is_alone))

    def replaced(self, new: str, *, is_alone: bool = True) -> tuple[str, str]:
        """What to write for another text of it, and in place of what.

        That is it, or an expression around it, if it is short and written once on its line.
        Only it, if it is not alone: an expression around it may hold another one.
        """
        file, line = self.file, linecache.getline(self.file, self.node.lineno)
        for node in (self.node, *(self._around() if is_alone else ())):
            text = text_of(node, file)
            if len(text) <= _WIDE and len(_columns(text, line)) <= 1:
                return text_with(node, self.node, new, file), text
        columns = _columns(self.text, line)
        number = sum(column < self.node.col_offset for column in columns)
        return new, f"the {_ORDINALS[min(number, 3)]} {self.text}"

    def _around(self) -> Iterator[ast.expr]:
        """The expressions around it, inside out."""
        whole = statement(self.file, self.node.lineno)
        found = [x for x in (ast.walk(whole) if whole else ()) if isinstance(x, ast.expr)]
        found = [x for x in found if encloses(span(x), span(self.node))]
        yield from sorted(found, key=span, reverse=True)


_ORDINALS = ("first", "second", "third", "last")


def _columns(text: str, line: str) -> list[int]:
    """Where an expression stands in a line."""
    found = re.finditer(rf"(?<![\w.]){re.escape(text)}(?!\w|\.\d)", line)
    return [len(line[: match.start()].encode()) for match in found]


def of_result(
    code: CodeType | None, parts: Sequence[str], classes: Mapping[str, Sequence[str]] = {}
) -> Expression | None:
    """The expression of a leaf of what a function of the user's returns.

    Args:
        code: of the function.
        parts: of the path of the leaf.
        classes: the parameters of those that it may call, by their names.
    """
    node = returned(code) if code and is_users(code.co_filename) else None
    is_repeated = False
    for part in parts:
        is_repeated |= isinstance(node, _REPEATED)
        node = item(node, part, classes)
    if code is None or node is None or isinstance(node, (*_DISPLAYS, *_REPEATED)):
        return None
    found = Expression(node, code.co_filename, True, is_repeated)
    return found if len(found.text) <= _LONG else None


def on_line(
    line: Origin,
    code: CodeType | None = None,
    parts: Sequence[str] = (),
    classes: Mapping[str, Sequence[str]] = {},
) -> Expression | None:
    """The expression on a line that computes a leaf; None if that has to be searched.

    Args:
        line: that assigns a variable, returns, or is in a lambda.
        code: of a function that may have the line.
        parts: of the path of the leaf in what that returns.
        classes: the parameters of those that it may call, by their names.
    """
    function = re.sub(r"\.<locals>\.<(list|dict)comp>$", "", line.function)
    lines = {number for *_, number in code.co_lines()} if code else ()
    is_in_code = code is not None and function == code.co_qualname and line.line in lines
    if is_in_code and (found := of_result(code, parts, classes)):
        last = found.node.end_lineno or found.node.lineno
        if found.node.lineno <= line.line <= last:
            return found
    node = statement(line.file, line.line)
    source, is_lambda = None, line.function.endswith("<lambda>")
    if is_lambda and not is_in_code:
        lambdas = [x for x in (ast.walk(node) if node else ()) if isinstance(x, ast.Lambda)]
        source = lambdas[0].body if len(lambdas) == 1 else None
    elif isinstance(node, ast.Return):
        source = node.value
        for part in parts if is_in_code else ():
            source = None if isinstance(source, _REPEATED) else item(source, part, classes)
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        source = node.value
    if source is None or isinstance(source, (ast.Name, *_DISPLAYS, *_REPEATED)):
        return None
    if isinstance(source, ast.Call) and called(source) in _CONTAINERS:
        return None
    found = Expression(source, line.file, is_repeated=is_lambda)
    is_short = len(found.text) <= _LONG and "lambda" not in found.text
    return found if is_short else None


def in_place(texts: tuple[str, str]) -> str:
    """What to write: one text in place of another."""
    return " in place of ".join(texts)


def called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def atom(node: ast.AST, text: str) -> str:
    """An expression in brackets where another one is written around it."""
    return text if is_atom(node) else f"({text})"


def is_atom(node: ast.AST | None) -> bool:
    """Whether an expression needs no brackets."""
    return node is None or isinstance(node, _ATOMS)
