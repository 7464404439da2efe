"""The report on functions that were compiled again: sentences from the differences."""

from collections.abc import Sequence

from jax import tree_util

from .._leaves.cast_text import cast_text, lost, return_as
from .._leaves.dtypes import fits, kind
from .._leaves.key_path import leaves_of_holders, path_text, tree_name
from .._leaves.table import CAUSES, FEW, and_more, columns, grouped
from .compilation import CallDifference, TypeChange

_WEAK = (
    "Weak types come from Python numbers, that of jnp.array(1.0) too: give strongly typed "
    "arrays from the first call on, such as dtypeguard.strong(state)."
)

Fact = tuple[str, str, str]  # what is to be edited, its line, the code of that


def lines_of_differences(
    differences: Sequence[CallDifference], is_whole: bool
) -> list[str]:
    """Returns the lines on one function, types first.

    Args:
        differences: between its calls.
        is_whole: whether to list all.
    """
    in_order = sorted(differences, key=lambda difference: not difference.type_change)
    groups = grouped(in_order, _text_and_facts)
    listed = groups if is_whole else groups[:CAUSES]
    lines = []
    for group in listed:
        text, *facts = _text_and_facts(group[0])
        name = _name(group, is_whole)
        lines.append(f"  {name}  {text}")
        for line in columns(facts):
            lines.append(f"    {line}")
    omitted = len(groups) - len(listed)
    lines += and_more(omitted)
    return lines + _advice(in_order)


def _name(group: Sequence[CallDifference], is_whole: bool) -> str:
    paths = [difference.path for difference in group]
    if len(paths) > FEW and not is_whole:
        return leaves_of_holders(paths)
    # Trees that differ have no path: they are all of the arguments.
    names = [path_text(path) or "arguments" for path in paths]
    return ", ".join(names)


def _text_and_facts(difference: CallDifference) -> tuple[str | Fact, ...]:
    return (_text(difference), *_facts(difference))


def _text(difference: CallDifference) -> str:
    """Returns a part before and after: `bfloat16 -> float32`."""
    change = difference.type_change
    if change is not None:
        before_type = change.before.without_shape
        after_type = change.after.without_shape
        return f"{before_type} -> {after_type}"
    if not difference.path:
        return "of another tree"
    after = difference.after
    # The text of an object would be a function of the user's.
    if after.is_object:
        return f"another {after.text} each time"
    return f"{difference.before.text} -> {after.text}"


def _facts(difference: CallDifference) -> list[Fact]:
    """Returns the lines behind a difference, what is to be edited first."""
    why = difference.why
    change = difference.type_change
    if change is None:
        lines = {"made": why.origin or why.begun}
    else:
        before = change.before.without_shape
        after = change.after.without_shape
        begins = {f"begins as {before}": why.begun}
        lines = {f"becomes {after}": why.origin, f"because of {after}": why.cause}
        # A Python number takes any type: where it begins is to be edited.
        if change.before.weak:
            lines = begins | lines
        else:
            lines |= begins
    facts: dict[str, Fact] = {}
    for words, line in lines.items():
        # A line that did two things stands once.
        if line is not None and line.place not in facts:
            code = line.users.code
            facts[line.place] = (words, line.place, code)
    if facts:
        return list(facts.values())
    caller = str(difference.caller or "")
    return [("called", caller, "")]


def _advice(differences: Sequence[CallDifference]) -> list[str]:
    """Returns what to write, each sentence once."""
    sentences = set()
    guarded: dict[str, int | None] = {}  # the items that come back, by parameter
    for difference in differences:
        change = difference.type_change
        name = tree_name(difference.path)
        returned = difference.returned
        if change is None:
            sentences.add(_advice_for_constant(difference))
        elif _is_guarded(difference, change):
            guarded[name] = returned.item if returned else guarded.get(name)
        else:
            sentences.add(_advice_for_leaf(difference, change))
    lines = sorted(sentences - {""})
    if guarded:
        lines.append(_guard_advice(guarded))
    return lines


def _is_guarded(difference: CallDifference, change: TypeChange) -> bool:
    """Returns whether a guard of the step gives a leaf the type that it had."""
    before = change.before.dtype
    after = change.after.dtype
    # A guard casts within a kind, and a weak leaf takes any type.
    if change.before.weak or before == after or not fits(after, before):
        return False
    return bool(difference.returned) or difference.why.origin is None


def _guard_advice(items: dict[str, int | None]) -> str:
    carry = tuple(items)
    returned = tuple(items.values())
    # By itself `guard_step` takes the first argument and the first result, or the whole.
    is_default = None in returned or "self" in carry or returned == (0,)
    options = ""
    if not is_default:
        options = f", carry={carry!r}, returned={returned}"
    return (
        "Where a step gives back another dtype than it was given: "
        f"dtypeguard.guard_step(step{options}), or dtypeguard.guard(opt) for an optimizer."
    )


def _advice_for_constant(difference: CallDifference) -> str:
    """Returns how a constant stays the same; empty if there is nothing to say."""
    after = difference.after
    path = difference.path
    name = path_text(path)
    if not path or after.leaf_type is not None:
        return ""
    if after.is_object:
        return f"Make {tree_name(path)} once, before the calls."
    # A number in a tuple or a dict may be a part of a shape.
    is_named = all(isinstance(key, tree_util.GetAttrKey) for key in path[1:])
    if after.constant_type not in (int, float) or not is_named:
        return ""
    # What is traced is no size: the program would not trace.
    if difference.is_size:
        return f"{name} is a size of the program's arrays, of which each compiles anew."
    return (
        f"{name} is a constant, of which each compiles anew: "
        f"trace it, as jnp.asarray({difference.before.text})."
    )


def _advice_for_leaf(difference: CallDifference, change: TypeChange) -> str:
    before = change.before.dtype
    after = change.after.dtype
    if kind(before) is None or kind(after) is None:  # random keys
        return ""
    if before == after:
        return _WEAK
    why = difference.why
    name = path_text(difference.path)
    begin = f"Begin {name} as {after}"
    if why.begun is not None:
        line = why.begun.users
        begin = f"At {line} begin {name} as {after}"
    if change.before.weak:
        return f"{begin}: jnp.asarray(x, jnp.{after})."
    if fits(after, before):
        if why.origin is None:
            return ""
        return f"Cast it at {why.origin.users}: {cast_text(before)}."
    # A guard refuses to cast what the step itself gave back in another kind.
    if difference.returned is not None:
        loss = lost(before, after)
        return f"{begin}{loss}, or {return_as(before, after)}."
    return ""
