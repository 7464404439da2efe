"""Finds the line that gave a Python number: in a config, a module, a default."""

import ast
import functools
import sys
from collections.abc import Iterable, Iterator
from types import FrameType, ModuleType

import numpy as np

from .._leaves.types import PyTree
from .._source.files import is_recorded
from .._source.origin import (
    Origin,
    callers,
    origin_at,
    origin_of_frame,
)
from .._source.syntax import (
    defaults_of,
    evaluated,
    parsed,
    source_text,
    statement,
    text_of,
)
from .expressions import passed
from .record import of_number


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
    file = frame.f_code.co_filename
    if not name and isinstance(source, ast.expr) and is_recorded(file):
        is_computed = isinstance(source, (ast.BinOp, ast.Call, ast.Constant))
        return origin_of_frame(frame, source.lineno) if is_computed else None
    if line := of_number(name, value):
        return line
    if isinstance(source, ast.Name) and (line := _passed(frame, name, value)):
        return line
    found = _only(_files(source, frame) if name else (), name, value)
    return found and origin_at(found[0], found[1].lineno, "")


def number_source(name: str, value: PyTree, file: str) -> tuple[str, ast.expr] | None:
    """The only place where a file of the user's writes out a number for a name.

    Args:
        name: of a variable, a parameter or a field.
        value: the number.
        file: that is looked at first.
    """
    modules = [_file(x) for x in list(sys.modules.values()) if isinstance(x, ModuleType)]
    files = (file, *filter(None, modules))
    return _only(filter(is_recorded, files), name, value)


def _only(files: Iterable[str], name: str, value: PyTree) -> tuple[str, ast.expr] | None:
    """The first of some files that writes out a number for a name, if it does so once."""
    for file in dict.fromkeys(files):
        nodes = list(_written(file, name, value))
        if nodes:
            return (file, nodes[0]) if len(nodes) == 1 else None
    return None


def _passed(frame: FrameType, name: str, value: PyTree) -> Origin | None:
    """The line at which a call writes out the number that is a parameter of its function.

    Args:
        frame: of the function.
        name: of the parameter.
        value: the number.
    """
    while given := passed(frame, name):
        frame, source = given
        if _is(source, value):
            return origin_of_frame(frame, source.lineno)
        name = getattr(source, "id", "")
    return None


def with_a_point(line: Origin, value: PyTree) -> tuple[str, str] | None:
    """How a line may write a float for the one int of a value that it writes out."""
    node = statement(line.file, line.line)
    numbers = [x for x in (ast.walk(node) if node else ()) if isinstance(x, ast.Constant)]
    found = [x for x in numbers if type(x.value) is int and x.value == value]
    return (repr(float(value)), text_of(found[0], line.file)) if len(found) == 1 else None


def whole_on_line(
    line: Origin, value: PyTree, source: ast.expr | None = None
) -> tuple[str, str] | None:
    """How a line may write a whole number for the float that it gives, and as it is.

    Args:
        line: of the user's, which computes the number or writes it out.
        value: the number.
        source: the expression that JAX refuses, which may be on that line.
    """
    node, number = statement(line.file, line.line), np.asarray(value).item()
    if node is None:
        return None
    items = [getattr(x, "elts", [x]) for x in _given(node)]  # such as a tuple of sizes
    given = [x for each in items for x in each if isinstance(x, _NUMBERS)]
    found = [x for x in given if _is(x, number)]
    if source is not None and source.lineno == line.line and isinstance(source, _NUMBERS):
        found = [source]
    if not found and isinstance(node, (ast.Assign, ast.AnnAssign)):
        made = getattr(node.value, "func", None)
        is_object = ast.unparse(made).rpartition(".")[2][:1].isupper() if made else False
        found = [x for x in [node.value] if isinstance(x, _NUMBERS) and not is_object]
    found = found or [x for x in given if x.lineno == line.line]
    if len({*map(ast.dump, found)}) != 1:
        return None
    source, text = found[0], text_of(found[0], line.file)
    if len(text) > _LONG:
        return None
    if isinstance(source, ast.Constant):
        return str(int(number)), text
    parts = [x for x in ast.walk(source) if isinstance(x, ast.Constant)]
    is_of_ints = all(isinstance(x, _PLAIN) for x in ast.walk(source)) and all(
        type(x.value) is int for x in parts
    )
    if isinstance(source, ast.BinOp) and isinstance(source.op, ast.Div) and is_of_ints:
        sides = (text_of(each, line.file) for each in (source.left, source.right))
        return " // ".join(sides), text
    return f"int({text})", text


_NUMBERS = ast.Constant, ast.BinOp, ast.Call
_LONG = 60  # an expression with more characters is not written out


def _given(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement gives by name or place: to a parameter, a default, a tuple."""
    for each in ast.walk(node):
        if isinstance(each, (ast.keyword, ast.AnnAssign)) and each.value:
            yield each.value
        elif isinstance(each, ast.arguments):
            yield from (x for x in (*each.defaults, *each.kw_defaults) if x)
        elif isinstance(each, (ast.Tuple, ast.List)):
            yield from each.elts
        elif isinstance(each, ast.Dict):
            yield from each.values


def _files(source: ast.AST | None, frame: FrameType) -> Iterator[str]:
    """The user's files, those first that likely assign what an expression looks up."""
    owner = evaluated(getattr(source, "value", None), frame)
    modules = [owner, *(sys.modules.get(x.__module__) for x in type(owner).__mro__)]
    modules += [each.f_code.co_filename for each in (frame, *callers(frame))]
    for each in (*modules, *sys.modules.values()):
        file = _file(each) if isinstance(each, ModuleType) else each
        if isinstance(file, str) and is_recorded(file):
            yield file


def _written(file: str, name: str, value: PyTree) -> Iterator[ast.expr]:
    """What a file writes out to give a number to a name."""
    places = _places(name, len(sys.modules))
    text = source_text(file)
    if not any(each in text for each in (name, *places)):
        return
    named, calls = _index(parsed(file) or ast.Module([], []))
    given = list(named.get(name, ()))
    for call in calls:
        place = places.get(_name(call.func), len(call.args))
        given += call.args[place : place + 1]
    yield from (each for each in given if _is(each, value))


@functools.lru_cache(100)
def _index(module: ast.Module) -> tuple[dict[str, list[ast.expr]], list[ast.Call]]:
    """What a file gives to each name, and its calls."""
    named: dict[str, list[ast.expr]] = {}
    calls: list[ast.Call] = []
    for node in ast.walk(module):
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
        elif isinstance(node, ast.Call):
            calls.append(node)
        elif isinstance(node, ast.arguments):
            pairs = [*defaults_of(node)]
        for target, given in pairs:
            if given is not None:
                named.setdefault(target, []).append(given)
    return named, calls


@functools.lru_cache(10)
def _places(name: str, modules: int) -> dict[str, int]:
    """The user's classes that are given a field of a name by position, with that.

    Args:
        name: of the field.
        modules: how many are imported.
    """
    found: dict[str, int] = {}
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType) or not is_recorded(_file(module) or "<"):
            continue
        for called, kind in list(vars(module).items()):
            known = kind if isinstance(kind, type) else None
            options = getattr(known, "__dataclass_fields__", {})
            fields = [each for each, option in options.items() if option.init]
            fields = [*getattr(known, "_fields", fields)]
            if name in fields:
                found[called] = fields.index(name)
    return found


def _file(module: ModuleType) -> str | None:
    return vars(module).get("__file__")


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
