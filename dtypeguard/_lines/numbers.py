"""Finds the line that gave a Python number: in a config, a module, a default."""

import ast
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType

from .._leaves.types import PyTree
from .._source.files import is_recorded
from .._source.origin import Origin, callers, origin_at, origin_of_frames
from .._source.syntax import evaluated, parsed
from .monitored import recorder


def number_line(source: ast.AST | None, frame: FrameType, value: PyTree) -> Origin | None:
    """The line that gave a number to the name by which an expression looks it up.

    As it was recorded; else the one in the files that may have, if that writes the number
    out, as in `128 / 4`.

    Args:
        source: a variable or an attribute.
        frame: of the function that evaluates it.
        value: the number.
    """
    name = getattr(source, "attr", getattr(source, "id", ""))
    known = recorder()
    if known and (made := known.number(name, value)):
        return origin_of_frames(made.through)
    for file in dict.fromkeys(_files(source, frame)) if name else ():
        lines = list(_written(file, name, value))
        if lines:
            return origin_at(file, lines[0], "") if len(lines) == 1 else None
    return None


def _files(source: ast.AST | None, frame: FrameType) -> Iterator[str]:
    """The user's files, those first that likely assign what an expression looks up."""
    owner = evaluated(getattr(source, "value", None), frame)
    modules = [owner, *(sys.modules.get(x.__module__) for x in type(owner).__mro__)]
    modules += [each.f_code.co_filename for each in (frame, *callers(frame))]
    for each in (*modules, *sys.modules.values()):
        is_module = isinstance(each, ModuleType)
        file = vars(each).get("__file__") if is_module else each
        if isinstance(file, str) and is_recorded(file):
            yield file


def _written(file: str, name: str, value: PyTree) -> Iterator[int]:
    """The lines of a file that give a number to a name."""
    for node in ast.walk(parsed(file) or ast.Module([], [])):
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            pairs = [(_name(target), node.value) for target in node.targets]
            for target in node.targets:  # `w, n = ..., 0`
                items = getattr(target, "elts", ()), getattr(node.value, "elts", ())
                pairs += [(_name(item), given) for item, given in zip(*items)]
        elif isinstance(node, ast.AnnAssign):
            pairs = [(_name(node.target), node.value)]
        elif isinstance(node, ast.keyword):
            pairs = [(node.arg or "", node.value)]
        elif isinstance(node, ast.arguments):
            names = [each.arg for each in (*node.posonlyargs, *node.args)]
            pairs = [*zip(names[len(names) - len(node.defaults) :], node.defaults)]
            pairs += [(each.arg, x) for each, x in zip(node.kwonlyargs, node.kw_defaults)]
        for target, given in pairs:
            if target == name and given is not None and _is(given, value):
                yield given.lineno


_PLAIN = ast.Constant, ast.BinOp, ast.UnaryOp, ast.Add, ast.Sub, ast.Mult, ast.Div
_PLAIN += (ast.FloorDiv, ast.Mod, ast.USub)


def _name(target: ast.expr) -> str:
    return getattr(target, "attr", getattr(target, "id", ""))


def _is(node: ast.expr, value: PyTree) -> bool:
    """Whether an expression of constants alone is a number."""
    is_plain = lambda x: isinstance(getattr(x, "value", 0), (int, float, complex))
    if not all(isinstance(x, _PLAIN) and is_plain(x) for x in ast.walk(node)):
        return False
    try:
        number = eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}})
    except (ArithmeticError, TypeError, ValueError):
        return False
    return type(number) is type(value) and number == value
