"""The report on functions that were compiled again: sentences from the differences."""

from collections.abc import Sequence

from jax import tree_util

from .._leaves.cast_text import cast_text, lost, return_as
from .._leaves.dtypes import fits, kind
from .._leaves.key_path import leaves_of_holders, path_text, tree_name
from .._leaves.table import CAUSES, FEW, and_more, columns, grouped
from .compilation import CallDifference, TypeChange

_WEAK = (
    "Weak types come from Python numbers: give jax.Arrays from the first call on, such as "
    "dtypeguard.strong(state)."
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
    groups = grouped(in_order, lambda difference: (_text(difference), *_facts(difference)))
    most = len(groups) if is_whole else CAUSES
    lines = []
    for group in groups[:most]:
        lines.append(f"  {_name(group, is_whole)}  {_text(group[0])}")
        lines += [f"    {line}" for line in columns(_facts(group[0]))]
    lines += and_more(len(groups) - len(groups[:most]))
    advice = set()
    guarded: dict[str, int | None] = {}  # the items that come back, by parameters
    for difference in in_order:
        if _is_guarded(difference):
            returned = difference.returned
            guarded[tree_name(difference.path)] = returned.item if returned else None
        else:
            advice.add(_sentence_of_advice(difference))
    lines += sorted(advice - {""})
    if guarded:
        lines.append(_guard_advice(guarded))
    return lines


def _name(group: Sequence[CallDifference], is_whole: bool) -> str:
    paths = [difference.path for difference in group]
    if len(paths) > FEW and not is_whole:
        return leaves_of_holders(paths)
    return ", ".join(path_text(path) or "arguments" for path in paths)


def _text(difference: CallDifference) -> str:
    """Returns a part before and after: `bfloat16 -> float32`."""
    before = difference.before
    after = difference.after
    change = difference.type_change
    if not difference.path:
        return "of another tree"
    if change is not None:
        return f"{change.before.without_shape} -> {change.after.without_shape}"
    if after.is_object:
        return f"another {after.text} each time"
    return f"{before.text} -> {after.text}"


def _facts(difference: CallDifference) -> list[Fact]:
    """Returns the lines behind a difference, what is to be edited first."""
    why = difference.why
    change = difference.type_change
    if change is not None:
        name = change.after.without_shape
        begins = (f"begins as {change.before.without_shape}", why.begun)
        becomes = (f"becomes {name}", why.origin)
        because = (f"because of {name}", why.cause)
        is_weak = change.before.weak
        order = [begins, becomes, because] if is_weak else [becomes, because, begins]
    else:
        order = [("made", why.origin or why.begun)]
    facts: dict[str, Fact] = {}
    for words, line in order:
        if line is not None:
            facts.setdefault(line.place, (words, line.place, line.users.code))
    return list(facts.values()) or [("called", str(difference.caller or ""), "")]


def _is_guarded(difference: CallDifference) -> bool:
    """Returns whether a guard of the step gives a leaf the type that it had."""
    change = difference.type_change
    if change is None or change.before.weak:
        return False
    before = change.before.dtype
    after = change.after.dtype
    if before == after or not fits(after, before):
        return False
    return bool(difference.returned) or difference.why.origin is None


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


def _sentence_of_advice(difference: CallDifference) -> str:
    """Returns what to write; empty if there is nothing to say."""
    before = difference.before
    after = difference.after
    if difference.type_change is not None:
        return _advice_for_leaf(difference, difference.type_change)
    if not difference.path:
        return ""
    if after.is_object:
        return f"Make {tree_name(difference.path)} once, before the calls."
    # A number in a tuple or a dict may be a part of a shape.
    keys = difference.path[1:]
    is_named = all(isinstance(key, tree_util.GetAttrKey) for key in keys)
    if after.constant_type in (int, float) and is_named:
        return (
            f"{path_text(difference.path)} is a constant, of which each compiles anew: "
            f"trace it, as jnp.asarray({before.text})."
        )
    return ""


def _advice_for_leaf(difference: CallDifference, change: TypeChange) -> str:
    before = change.before.dtype
    after = change.after.dtype
    if kind(before) is None or kind(after) is None:  # random keys
        return ""
    if before == after:
        return _WEAK
    why = difference.why
    begin = f"egin {path_text(difference.path)} as {after}"
    begin = f"At {why.begun.users} b{begin}" if why.begun else f"B{begin}"
    if change.before.weak:
        return f"{begin}: jnp.asarray(x, jnp.{after})."
    if fits(after, before):
        return f"Cast it at {why.origin.users}: {cast_text(before)}." if why.origin else ""
    if difference.returned:  # a guard refuses it
        return f"{begin}{lost(before, after)}, or {return_as(before, after)}."
    return ""
