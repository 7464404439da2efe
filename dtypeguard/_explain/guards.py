"""What to write to guard the body of a loop."""

import ast
import os

from .._source.files import line_text, package, short_path
from .._source.origin import Frame
from .._source.syntax import text_of
from .frames import ControlFlow
from .kinds import Kind
from .rewritten import decorated, text_with
from .written import called

_LONG = 100  # a call with more characters is not written out


def guard_given(call: ControlFlow, frame: Frame) -> str:
    """What to write to guard a function that is given to a package."""
    owner, _, name = frame.function.rpartition(".")
    owner = owner.rpartition(".")[2]
    is_method = owner.isidentifier()
    position = call.carry
    if short_path(call.file).startswith(os.path.join("flax", "core")):
        position = int(not is_method)  # Flax Linen gives it the module first
    carry = f"carry={position}" if position else ""
    decorator = f"@dtypeguard.guard_step{carry and f'({carry})'}"
    given = f"guard what you give to {package(call.file)}: "
    if is_method:
        return f"{given}{decorator} on {owner}.{name}"
    if line := decorated(frame.file, frame.line, name):
        where = line_text(frame.file, line)
        return f"write {decorator} directly above def {name} at {where}"
    inside = ", ".join(filter(None, [_argument(name), carry]))
    return f"{given}dtypeguard.guard_step({inside})"


def _argument(name: str) -> str:
    """What to write for a function: its name, or "body" where it has none."""
    return name if name.isidentifier() else "body"


def guard_written(call: ControlFlow) -> str:
    """To guard the body in the call, as the user has written it if that is short."""
    kind, code, written = call.kind, call.bodies["body"].code, call.written
    node = _body_of(written, kind)
    if isinstance(written, ast.Call) and node and called(written) == kind.name:
        text = _guard_step(kind, text_of(node, call.file))
        if len(text_of(written, call.file)) <= _LONG:
            return f"write {text_with(written, node, text, call.file)}"
    if isinstance(node, ast.Lambda):
        ellipsis = "(..., carry=1)" if kind.carry else ""
        where = line_text(call.file, node.lineno)
        return f"wrap the lambda at {where} in dtypeguard.guard_step{ellipsis}"
    name = getattr(node, "id", code.co_name if code else "")
    return f"write {kind.form.format(_guard_step(kind, _argument(name)))}"


def _guard_step(kind: Kind, function: str) -> str:
    carry = f", carry={kind.carry}" if kind.carry else ""
    return f"dtypeguard.guard_step({function}{carry})"


def _body_of(written: ast.AST | None, kind: Kind) -> ast.expr | None:
    """The body in a call of control flow; None if it is not written there."""
    if not isinstance(written, ast.Call):
        return None
    body = [each.value for each in written.keywords if each.arg == kind.keyword]
    before = written.args[: kind.position + 1]
    if len(before) > kind.position and not any(isinstance(x, ast.Starred) for x in before):
        body = [before[-1]]
    return body[0] if len(body) == 1 else None
