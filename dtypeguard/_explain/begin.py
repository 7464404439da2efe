"""Writes how leaves are to begin in another dtype, at the user's own line."""

import ast
from collections.abc import Iterable, Sequence
from types import FrameType

import numpy as np
from jax import dtypes

from .._leaves.dtypes import dtype_of, kind
from .._leaves.groups import of_holders
from .._leaves.paths import keys, parts
from .._leaves.rows import array_text, cast_text, dtype_text, lost
from .._leaves.types import DType
from .._lines.expressions import asks_for
from .._source.origin import Origin
from .._source.syntax import evaluated, item, statement, text_of
from .finding import Finding, RefusedLeaf
from .rewritten import text_with
from .written import Expression, called

_LONG = 60  # an expression with more characters is not written out


def begin_text(finding: Finding, leaves: Sequence[RefusedLeaf], word: str) -> str:
    """What to write so that leaves begin in the type in which they come back.

    Args:
        finding: of the error.
        leaves: of one type before and one after.
        word: "begin" or "start".
    """
    old, new = leaves[0].dtypes
    begun = dict.fromkeys(x.why.begun.users for x in leaves if x.why.begun)
    where = f"at {' and '.join(map(str, begun))} " if begun else ""
    name = leaves[0].path if len(leaves) == 1 else of_holders([x.path for x in leaves])
    head, loss = f"{where}{word} {name} as {new}", lost(old, new)
    carried = finding.program.carried[0].arrays if finding.program else ()
    floats = [x for x in map(dtype_of, carried) if x == old]
    ways: list[tuple[str, str] | None] = []
    is_all = len(floats) == len(leaves)
    if len(begun) == 1:
        (line,), frames = begun, [site.frame for site in finding.sites]
        key = keys(leaves[0].path)[-1] if len(leaves) == 1 else ""
        if is_all or key:
            ways.append(dtype_on_line(line, old, new, frames, key))
        if key and (kind(old), kind(new)) == ("int", "float"):
            ways.append(_with_a_point(line, key))
        if word == "begin" and _is_tree(finding, leaves):
            ways.append(_assigned(line, new))
    if written := next(filter(None, ways), None):
        return f"{head}: write {written[0]} in place of {written[1]}{loss}"
    return f"{head}: {array_text(new)}" if word == "begin" else f"{head}{loss}"


def _is_tree(finding: Finding, leaves: Sequence[RefusedLeaf]) -> bool:
    """Whether leaves are all that a part of the carry has."""
    if finding.program is None:
        return False
    (name, *_), (carried, *_) = finding.program.names, finding.program.carried
    inside = [parts(leaf.path)[1:] for leaf in leaves]
    depth = sum(len(set(each)) == 1 for each in zip(*inside))
    holder = name + "".join(inside[0][:depth])
    return sum(f"{name}{path}".startswith(holder) for path in carried.paths) == len(leaves)


def _assigned(line: Origin, new: DType) -> tuple[str, str] | None:
    """What a line assigns to a variable, with a cast of all its arrays, and as it is.

    Args:
        line: of the user's.
        new: the dtype to cast to.
    """
    node = statement(line.file, line.line)
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return None
    text = text_of(node.value, line.file)
    if not isinstance(node.value, ast.Call) or len(text) > _LONG:
        return None
    return f"jax.tree.map(lambda x: {cast_text(new)}, {text})", text


def _with_a_point(line: Origin, key: str) -> tuple[str, str] | None:
    """The int that a line writes out for a key or a keyword, as a float and as it is."""
    node = statement(line.file, line.line)
    given = set(_items(node, key, None)) if node else set[ast.expr]()
    values = [getattr(each, "value", None) for each in given]
    if len(values) != 1 or type(values[0]) is not int:
        return None
    return f"{values[0]}.0", str(values[0])


def whole_floats(line: Origin) -> list[str]:
    """The numbers on a line that are written with a point, and need none.

    Each with its sign; none beside a negative exponent: JAX raises no int to -1.
    """
    node = statement(line.file, line.line)
    nodes = [*ast.walk(node)] if node else []
    signs = [x for x in nodes if isinstance(x, ast.UnaryOp) and isinstance(x.op, ast.USub)]
    signed = {id(x.operand): x for x in signs}
    powers = [
        x.right for x in nodes if isinstance(x, ast.BinOp) and isinstance(x.op, ast.Pow)
    ]
    calls = [x for x in nodes if isinstance(x, ast.Call) and called(x) in ("pow", "power")]
    if any(x in signs for x in (*powers, *(y for x in calls for y in x.args[1:]))):
        return []
    texts = [
        text_of(signed.get(id(x), x), line.file)
        for x in nodes
        if isinstance(x, ast.Constant) and type(x.value) is float and x.value.is_integer()
    ]
    return texts if len(texts) == 1 else []


def dtype_on_line(
    line: Origin, old: DType, new: DType, frames: Iterable[FrameType], key: str = ""
) -> tuple[str, str] | None:
    """The call on a line that names a dtype, with another one, and as it is.

    Args:
        line: of the user's.
        old: the dtype that the line may name, once.
        new: the other one.
        frames: of functions, of which one may know the names of the file.
        key: of one leaf that it makes beside others, in a dict or as a keyword.
    """
    of_file = [x for x in frames if x.f_code.co_filename == line.file]
    of_file.sort(key=lambda x: x.f_code.co_qualname != line.function)
    frame = next(iter(of_file), None)
    node = statement(line.file, line.line)
    if node is None or frame is None:
        return None
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    names = lambda x: asks_for(x, frame, old) or _is_pythons(x, frame, old)
    named: list[tuple[ast.expr | None, ast.Call]] = [
        (each, call)
        for call in calls
        for each in (call.func, *call.args, *(x.value for x in call.keywords))
        if isinstance(each, (ast.Name, ast.Attribute, ast.Constant)) and names(each)
    ]
    is_whole = lambda call: call is getattr(node, "value", None)
    makers = [x for x in calls if (key or is_whole(x)) and _makes(x, old)]
    named = named or [(None, x) for x in makers]
    if len(named) != 1 and key:
        made = {id(each) for each in _items(node, key, frame)}
        named = [pair for pair in named if id(pair[1]) in made]
    if len(named) > 1:  # of a statement of several lines
        named = [pair for pair in named if pair[1].lineno == line.line]
    if len(named) != 1 or (key and _is_repeated(node, named[0][1])):
        return None
    name, call = named[0]
    whole = Expression(call, line.file)
    if len(whole.text) > _LONG:
        return name and Expression(name, line.file).replaced(dtype_text(new))
    text = text_with(call, name, dtype_text(new), line.file) if name else ""
    text = text or f"{whole.text[:-1]}, dtype={dtype_text(new)})"
    text, written = whole.replaced(text)
    alike = sum(ast.dump(x) == ast.dump(call) for x in calls)
    is_elsewhere = alike > 1 and call.lineno != line.line
    return text, written + f" (line {call.lineno})" * is_elsewhere


# Functions that make arrays, with how many arguments come before a dtype.
_MAKERS = {"array": 1, "asarray": 1, "zeros": 1, "ones": 1, "zeros_like": 1, "ones_like": 1}
_MAKERS |= {"full": 2, "full_like": 2}


def _makes(call: ast.Call, dtype: DType) -> bool:
    """Whether a call makes an array and leaves its dtype, which may be this one, to JAX."""
    name = getattr(call.func, "attr", "")
    is_named = any(each.arg == "dtype" for each in call.keywords)
    value = getattr(call.args[-1], "value", None) if call.args else None
    made = "float" if name in ("zeros", "ones") else None
    if type(value) in (bool, int, float) and name in ("array", "asarray", "full"):
        made = kind(np.asarray(value).dtype)
    is_other = made is not None and made != kind(dtype)
    return _MAKERS.get(name) == len(call.args) and not is_named and not is_other


def _items(node: ast.AST, key: str, frame: FrameType | None = None) -> list[ast.expr]:
    """What a statement writes out for a key of a dict, a keyword, or an item."""
    parts = f".{key}", f"[{key}]", f"[{key!r}]"
    all_of = [each for each in ast.walk(node) if isinstance(each, ast.expr)]
    found = [item(each, part) for each in all_of for part in parts]
    calls = [each for each in all_of if isinstance(each, ast.Call)]
    for call in calls:
        cls = evaluated(call.func, frame) if frame else None
        fields = [*getattr(cls, "__dataclass_fields__", getattr(cls, "_fields", ()))]
        found += call.args[fields.index(key) :][:1] if key in fields else []
    return [each for each in found if each is not None]


def _is_repeated(node: ast.AST, call: ast.expr) -> bool:
    """Whether a call in a statement is in a function, which may make several arrays."""
    inside = ast.Lambda, ast.ListComp, ast.DictComp, ast.GeneratorExp
    functions = (each for each in ast.walk(node) if isinstance(each, inside))
    return any(call is each for function in functions for each in ast.walk(function))


def _is_pythons(node: ast.expr, frame: FrameType, dtype: DType) -> bool:
    """Whether an expression is `int`, `float` or `bool`, which stands for a dtype."""
    types = {"int": int, "float": float, "bool": bool}
    named = types.get(getattr(node, "id", ""))
    if named is None or evaluated(node, frame) is not None:
        return False
    return kind(dtype) in types and dtypes.canonicalize_dtype(np.dtype(named)) == dtype
