"""The report on functions that were compiled again: sentences from the differences."""

import collections
from collections.abc import Collection

from jax import tree_util

from .._leaves.cast_text import cast_text, lost, return_as
from .._leaves.dtypes import fits, kind
from .._leaves.key_path import leaves_of_holders, path_text, tree_name
from .._leaves.leaf_type import LeafType
from .._leaves.table import CAUSES, FEW, and_more, columns
from .difference import CallDifference

_WEAK = (
    "Weak types come from Python numbers, that of jnp.array(1.0) too: give strongly typed "
    "arrays from the first call on, such as dtypeguard.strong(state)."
)

Fact = tuple[str, str, str]  # what is to be edited, its line, the code of that


def lines_of_differences(
    differences: Collection[CallDifference], is_whole: bool
) -> list[str]:
    """Returns the lines on one function.

    Args:
        differences: between its calls.
        is_whole: whether to list all.
    """
    # Leaves that share a cause share a row.
    paths_by_row = collections.defaultdict(list)
    for difference in sorted(differences, key=_is_of_values):
        row = (_text(difference), _facts(difference))
        paths_by_row[row].append(difference.path)
    rows = list(paths_by_row)
    most = CAUSES
    if is_whole:
        most = len(rows)
    lines = []
    for text, facts in rows[:most]:
        paths = paths_by_row[text, facts]
        name = ", ".join(map(path_text, paths))
        if len(paths) > FEW and not is_whole:
            name = leaves_of_holders(paths)
        lines.append(f"  {name}  {text}")
        for line in columns(facts):
            lines.append(f"    {line}")
    lines += and_more(len(rows[most:]))
    return lines + _advice(differences)


def _is_of_values(difference: CallDifference) -> bool:
    # Types come first: what is left out of a list is least told by values.
    return difference.types is None


def _text(difference: CallDifference) -> str:
    """Returns a part before and after: `bfloat16 -> float32`."""
    before = difference.before
    after = difference.after
    # Trees that differ are no part: they are all of the arguments.
    if before.identity == after.identity:
        return "of another tree"
    # The text of an object would be a function of the user's.
    if after.is_object:
        return f"another {after.text} each time"
    if difference.types is not None:
        first, second = difference.types
        return f"{first.without_shape} -> {second.without_shape}"
    return f"{before.text} -> {after.text}"


def _facts(difference: CallDifference) -> tuple[Fact, ...]:
    """Returns the lines behind a difference, what is to be edited first."""
    why = difference.why
    if difference.types is None:
        lines = [("made", why.origin or why.begun)]
    else:
        before, after = difference.types
        lines = [
            (f"becomes {after.without_shape}", why.origin),
            (f"because of {after.without_shape}", why.cause),
            (f"begins as {before.without_shape}", why.begun),
        ]
        # A Python number takes any type: where it begins is to be edited.
        if before.weak:
            lines.insert(0, lines.pop())
    facts: dict[str, Fact] = {}
    for words, line in lines:
        # A line that did two things stands once.
        if line is not None:
            fact = (words, line.place, line.users.code)
            facts.setdefault(line.place, fact)
    if not facts:
        called = ("called", str(difference.caller), "")
        return (called,)
    return tuple(facts.values())


def _advice(differences: Collection[CallDifference]) -> list[str]:
    """Returns what to write, each sentence once."""
    sentences = set()
    guarded: dict[str, int | None] = {}  # the items that come back, by parameter
    for difference in differences:
        returned = difference.returned
        if difference.types is None:
            sentences.add(_advice_for_constant(difference))
        elif returned is not None and _is_cast_by_guard(*difference.types):
            guarded[tree_name(difference.path)] = returned.item
        else:
            sentences.add(_advice_for_leaf(difference, *difference.types))
    lines = sorted(sentences - {""})
    if guarded:
        lines.append(_guard_advice(guarded))
    return lines


def _is_cast_by_guard(before: LeafType, after: LeafType) -> bool:
    """Returns whether a guard gives a leaf the type that it had."""
    # A weak leaf takes any type.
    if before.weak or before.dtype == after.dtype:
        return False
    return fits(after.dtype, before.dtype)


def _guard_advice(items: dict[str, int | None]) -> str:
    carry = tuple(items)
    returned = tuple(items.values())
    # By itself `guard_step` takes the first argument and the first result, or the whole.
    is_default = None in returned or "self" in carry or returned == (0,)
    options = "" if is_default else f", carry={carry!r}, returned={returned}"
    return (
        "Where a step gives back another dtype than it was given: "
        f"dtypeguard.guard_step(step{options}), or dtypeguard.guard(opt) for an optimizer."
    )


def _advice_for_constant(difference: CallDifference) -> str:
    """Returns how a constant stays the same; empty if there is nothing to say."""
    path = difference.path
    name = path_text(path)
    if difference.after.is_object:
        return f"Make {tree_name(path)} once, before the calls."
    # A number in a tuple or a dict may be a part of a shape.
    is_named = all(isinstance(key, tree_util.GetAttrKey) for key in path[1:])
    if type(difference.after.value) not in (int, float) or not is_named:
        return ""
    # What is traced is no size: the program would not trace.
    if difference.is_size:
        return f"{name} is a size of the program's arrays, of which each compiles anew."
    return (
        f"{name} is a constant, of which each compiles anew: "
        f"trace it, as jnp.asarray({difference.before.text})."
    )


def _advice_for_leaf(difference: CallDifference, first: LeafType, second: LeafType) -> str:
    before = first.dtype
    after = second.dtype
    why = difference.why
    if before == after:
        return _WEAK
    if kind(before) is None or kind(after) is None:  # a random key
        return ""
    begin = f"Begin {path_text(difference.path)} as {after}"
    if why.begun is not None:
        begin = f"{begin} at {why.begun.users}"
    if first.weak:
        return f"{begin}: jnp.asarray(x, jnp.{after})."
    if fits(after, before) and why.origin is not None:
        return f"Cast it at {why.origin.users}: {cast_text(before)}."
    # A guard refuses to cast what the step itself gave back in another kind.
    if difference.returned is not None:
        loss = lost(before, after)
        return f"{begin}{loss}, or {return_as(before, after)}."
    return ""
