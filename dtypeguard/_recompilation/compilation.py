"""What a function was compiled for, and what differs between two of its calls."""

import dataclasses
from collections.abc import Hashable
from types import CodeType

from .._leaves.key_path import KeyPath
from .._leaves.leaf_type import LeafType
from .._source.files import is_installed, is_users, line_text
from .._source.inert import written_code
from .._source.origin import Origin, Why, origin_at
from .call import CompilingCall
from .parts import ArgumentPart, parts_of_call
from .returned import ReturnedLeaf, returned_leaves


@dataclasses.dataclass(frozen=True)
class Compilation:
    """A function that was compiled for a call.

    Attributes:
        code: of the function.
        caller: the user's line of the call.
        parts: the leaves and the constants of the call by path.
        returned: the leaves that come back in another type.
    """

    code: CodeType
    caller: Origin | None
    parts: dict[KeyPath, ArgumentPart]
    returned: dict[KeyPath, ReturnedLeaf]

    @property
    def name(self) -> str:
        """The name of the function, with the line of its definition."""
        name = self.code.co_qualname.rpartition("<locals>.")[2]
        return f"{name} ({line_text(self.code.co_filename, self.code.co_firstlineno)})"

    @property
    def line(self) -> Origin:
        """The line of the function's definition."""
        return origin_at(self.code.co_filename, self.code.co_firstlineno, self.name)

    @property
    def layout(self) -> dict[KeyPath, Hashable]:
        """What stands at each path: a leaf, or a constant of a type."""
        return {path: part.role for path, part in self.parts.items()}

    @property
    def leaf_types(self) -> Hashable:
        """The types of all leaves."""
        leaves = self.parts.items()
        return tuple((path, part.leaf_type) for path, part in leaves if part.leaf_type)

    def is_called_from(self, caller: Origin | None) -> bool:
        """Returns whether a line calls it; several functions may share a file."""
        return str(self.caller) == str(caller)


@dataclasses.dataclass(frozen=True)
class TypeChange:
    """The types of a leaf in two calls."""

    before: LeafType
    after: LeafType


@dataclasses.dataclass(frozen=True)
class CallDifference:
    """A leaf or a constant that differs between two calls.

    Attributes:
        path: in the arguments; empty if their trees differ.
        before: what the first call had there; None if the trees differ.
        after: what the second call had there.
        why: the lines behind that.
        caller: the line of the second call.
        type_change: of a leaf, if its type is all that matters.
        is_returned: whether the function itself gave it that type.
    """

    path: KeyPath
    before: ArgumentPart | None
    after: ArgumentPart | None
    why: Why
    caller: Origin | None
    type_change: TypeChange | None = None
    is_returned: bool = False


def compilation_of(call: CompilingCall) -> Compilation | None:
    """Returns what is compiled; None if neither the function nor its call is the user's."""
    code = written_code(call.function)
    if code is None or not is_users(code.co_filename):  # in C, or JAX's
        return None
    nearest = call.outer_frames[:1]
    is_called_by_package = nearest and is_installed(nearest[0].f_code.co_filename)
    if is_called_by_package and is_installed(code.co_filename):
        return None
    leaves = call.leaves()
    parts = parts_of_call(call, leaves)
    return Compilation(code, call.caller, parts, returned_leaves(call, leaves))


def call_differences(before: Compilation, after: Compilation) -> list[CallDifference]:
    """Returns what differs between two calls of one function."""
    if before.layout != after.layout:
        return [CallDifference((), None, None, Why(), after.caller)]
    changed = []
    type_changes = {}
    for path, part in after.parts.items():
        if part.identity != before.parts[path].identity:
            changed.append(path)
            type_change = _type_change(before.parts[path], part)
            if type_change is not None:
                type_changes[path] = type_change
    differences = []
    has_object = False
    for path in changed:
        is_returned = path in type_changes and _is_returned(before, after, path)
        # With another constant it is another program, but for what came back.
        if is_returned or len(type_changes) == len(changed):
            change = type_changes[path]
            differences.append(_retyped(before, after, path, change, is_returned))
            continue
        # All objects in an object that is new are new.
        is_object = after.parts[path].is_object
        if not (is_object and has_object):
            differences.append(_other_difference(before, after, path))
        has_object = has_object or is_object
    return differences


def _type_change(before: ArgumentPart, after: ArgumentPart) -> TypeChange | None:
    """Returns the types of a leaf that has another type and the same shape."""
    old = before.leaf_type
    new = after.leaf_type
    if old is None or new is None or old.shape != new.shape:
        return None
    return TypeChange(old, new)


def _is_returned(before: Compilation, after: Compilation, path: KeyPath) -> bool:
    """Returns whether the first call gave a leaf back as the second one has it."""
    returned = before.returned.get(path)
    return returned is not None and returned.leaf_type == after.parts[path].leaf_type


def _retyped(
    before: Compilation,
    after: Compilation,
    path: KeyPath,
    change: TypeChange,
    is_returned: bool,
) -> CallDifference:
    """Returns another type, with the lines behind it."""
    begin_line = _lines_of_part(path, before, before).root
    if begin_line is None and change.before.weak and len(path) == 1:
        begin_line = before.caller  # which writes the number
    why = before.returned[path].why if is_returned else _lines_of_part(path, after, before)
    return CallDifference(
        path=path,
        before=before.parts[path],
        after=after.parts[path],
        why=why._replace(begun=begin_line),
        caller=after.caller,
        type_change=change,
        is_returned=is_returned,
    )


def _lines_of_part(path: KeyPath, call: Compilation, other_call: Compilation) -> Why:
    """Returns the lines behind a part of a call."""
    record = call.parts[path].record
    why = Why() if record is None else record.why()
    # What the line of both calls makes is to be changed where it begins.
    calls = (call, other_call)
    is_made_by_call = why.root and all(x.is_called_from(why.root.users) for x in calls)
    return Why() if is_made_by_call else why


def _other_difference(
    before: Compilation, after: Compilation, path: KeyPath
) -> CallDifference:
    """Returns another shape or constant, with the line that made it."""
    origin = None
    if after.parts[path].leaf_type is None:
        origin = (
            _lines_of_part(path, after, before).root
            or _lines_of_part(path, before, after).root
        )
    part = before.parts[path]
    return CallDifference(path, part, after.parts[path], Why(origin), after.caller)
