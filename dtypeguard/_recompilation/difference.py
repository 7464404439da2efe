"""What a function was compiled for, and what differs between two of its calls."""

import dataclasses
import weakref
from typing import Any

from .._leaves.key_path import KeyPath, TreeName
from .._leaves.leaf_type import LeafType
from .._program.graph import Graph
from .._source.files import is_installed, is_users
from .._source.inert import written_code
from .._source.origin import Origin, Why, origin_of_code
from .call import CompilingCall
from .parts import ArgumentPart, parts_of_call
from .returned import ReturnedLeaf, ReturnedLeaves, returned_leaves


@dataclasses.dataclass(frozen=True)
class Compilation:
    """A function that was compiled for a call.

    Attributes:
        cached: a reference to the function that JAX was given.
        line: the first one of the function.
        caller: the user's line of the call.
        parts: the leaves and the constants of the call by path.
        returned: the leaves that come back in another type, by that type as well.
        sizes: of the arrays in the program.
    """

    cached: weakref.ref[Any]
    line: Origin
    caller: Origin
    parts: dict[KeyPath, ArgumentPart]
    returned: ReturnedLeaves
    sizes: set[object]

    @property
    def name(self) -> str:
        """The name of the function, with the line of its definition."""
        _, _, name = self.line.function.rpartition("<locals>.")
        return f"{name} ({self.line})"

    @property
    def layout(self) -> dict[KeyPath, bool]:
        """Whether a leaf stands at each path, or a constant."""
        layout = {}
        for path, part in self.parts.items():
            layout[path] = part.leaf_type is not None
        return layout


_ARGUMENTS = (TreeName("arguments"),)
_OTHER_TREE = ArgumentPart("", None)


@dataclasses.dataclass(frozen=True)
class CallDifference:
    """A leaf or a constant that differs between two calls.

    Attributes:
        path: in the arguments; of all of them if their trees differ.
        before: what the first call had there.
        after: what the second call had there.
        why: the lines behind that.
        caller: the line of the second call.
        returned: the leaf as the function itself gave it back, in the type of the second
            call.
        is_size: whether it is a number that is a size of arrays in the programs.
    """

    path: KeyPath
    before: ArgumentPart
    after: ArgumentPart
    why: Why
    caller: Origin
    returned: ReturnedLeaf | None = None
    is_size: bool = False

    @property
    def types(self) -> tuple[LeafType, LeafType] | None:
        """The types of a leaf in the two calls, if its shape is the same."""
        before = self.before.leaf_type
        after = self.after.leaf_type
        # Another shape compiles anew in any type.
        if before is None or after is None or before.shape != after.shape:
            return None
        return before, after


def compilation_of(call: CompilingCall) -> Compilation | None:
    """Returns what is compiled; None if neither the function nor its call is the user's."""
    code = written_code(call.function)
    if code is None or not is_users(code.co_filename):  # in C, or JAX's
        return None
    # A package that calls itself does so for reasons of its own.
    if is_installed(call.caller.file) and is_installed(code.co_filename):
        return None
    leaves = call.leaves()
    graph = Graph(call.jaxpr)
    sizes: set[object] = set()
    for aval in graph.avals:
        sizes.update(getattr(aval, "shape", ()))
    return Compilation(
        cached=weakref.ref(call.cached),
        line=origin_of_code(code),
        caller=call.caller.users,
        parts=parts_of_call(call, leaves),
        returned=returned_leaves(call, leaves, graph),
        sizes=sizes,
    )


def call_differences(before: Compilation, after: Compilation) -> list[CallDifference]:
    """Returns what differs between two calls of one function."""
    if before.layout != after.layout:
        of_tree = CallDifference(
            path=_ARGUMENTS,
            before=_OTHER_TREE,
            after=_OTHER_TREE,
            why=Why(),
            caller=after.caller,
        )
        return [of_tree]
    differences = []
    for path, part in after.parts.items():
        if part.identity != before.parts[path].identity:
            differences.append(_difference(before, after, path))
    return differences


def _difference(before: Compilation, after: Compilation, path: KeyPath) -> CallDifference:
    """Returns what stands at a path in two calls, with the lines behind it."""
    old = before.parts[path]
    new = after.parts[path]
    begin_line = _lines_of_part(old, before, after).root
    is_number = old.leaf_type is not None and old.leaf_type.weak and len(path) == 1
    if begin_line is None and is_number:
        begin_line = before.caller  # which writes it
    returned = before.returned.get((path, new.leaf_type))
    why = _lines_of_part(new, before, after)
    if returned is not None:
        why = returned.why
    values = {old.value, new.value}
    return CallDifference(
        path=path,
        before=old,
        after=new,
        why=why._replace(begun=begin_line),
        caller=after.caller,
        returned=returned,
        # An array may be as long as any number is high: a size makes another program.
        is_size=not values.isdisjoint(before.sizes ^ after.sizes),
    )


def _lines_of_part(part: ArgumentPart, before: Compilation, after: Compilation) -> Why:
    """Returns the lines behind a part of a call, but those that call the function."""
    if part.record is None:
        return Why()
    why = part.record.why()
    # What the line of both calls makes is to be changed where it begins.
    if why.root and why.root.users == before.caller == after.caller:
        return Why()
    return why
