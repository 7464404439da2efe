"""What became of a leaf: one record, which is printed at the end."""

import dataclasses
from collections.abc import Iterable, Sequence

from jax import tree_util

from .errors import Row
from .key_path import KeyPath, TreeName, by_path, path_text
from .leaf_type import LeafType, type_or_class
from .types import Leaf, PyTree

ABSENT = "(absent)"


@dataclasses.dataclass(frozen=True)
class LeafChange:
    """A leaf before and after a call.

    Attributes:
        path: of the leaf, after the name of its tree.
        before: its type before the call; words for no array, None for no leaf.
        after: its type after the call, likewise.
        remedy: what to write instead; empty if there is nothing to say.
        castable: whether `Policy(casting="unsafe")` casts the leaf back.
    """

    path: KeyPath
    before: LeafType | str | None
    after: LeafType | str | None
    remedy: str = ""
    castable: bool = False

    def row(self) -> Row:
        """Returns the texts of the change, as errors hand them on."""
        before = str(self.before or ABSENT)
        after = str(self.after or ABSENT)
        return Row(path_text(self.path), before, after, self.remedy)


def leaf_changes(
    paths: Sequence[KeyPath],
    before: Iterable[Leaf],
    after: Iterable[Leaf],
    remedies: Iterable[str],
) -> list[LeafChange]:
    """Returns a change for each leaf that has a remedy."""
    changes = []
    for path, old, new, remedy in zip(paths, before, after, remedies):
        if remedy:
            old_type = type_or_class(old)
            new_type = type_or_class(new)
            changes.append(LeafChange(path, old_type, new_type, remedy))
    return changes


def tree_changes(
    name: str, before: PyTree, after: PyTree, remedy: str = ""
) -> list[LeafChange]:
    """Returns the leaves of one of two trees alone; both structures if there are none."""
    old_leaves = by_path(before, name)
    new_leaves = by_path(after, name)
    changes = []
    all_leaves = old_leaves | new_leaves
    for path, leaf in all_leaves.items():
        leaf_type = type_or_class(leaf)
        if path not in new_leaves:
            changes.append(LeafChange(path, leaf_type, None, remedy))
        elif path not in old_leaves:
            changes.append(LeafChange(path, None, leaf_type, remedy))
    if changes:
        return changes
    # The trees differ in a container or in what a node holds beside its leaves.
    old_structure = str(tree_util.tree_structure(before))
    new_structure = str(tree_util.tree_structure(after))
    return [LeafChange((TreeName(name),), old_structure, new_structure, remedy)]
