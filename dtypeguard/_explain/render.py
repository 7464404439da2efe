"""Fourth stage: writes a note, every leaf with its types and lines, and what to write."""

from .._leaves.dtypes import is_python_number
from .._leaves.rows import columns, rounding, type_text
from .._leaves.types import Leaf
from .._source.origin import places
from .choose import Choice
from .finding import RefusedLeaf


def render(choice: Choice) -> str:
    """The note."""
    causes = choice.causes
    leaves = [leaf for cause in causes for leaf in cause.leaves]
    leaves.sort(key=lambda leaf: leaf.number)
    remedies = list(dict.fromkeys(text for cause in causes for text in cause.remedy))
    types = [name for cause in causes for name in cause.types]
    lines = [line for leaf in leaves for line in (leaf.origin, leaf.cause) if line]
    users = dict.fromkeys(line.users for line in lines)
    code = columns([(str(line), line.code) for line in users if line.code])
    rows = columns([_row(*pair) for pair in zip(leaves, [None, *leaves])])
    return "\n".join(
        [
            f"dtypeguard: {choice.headline}",
            *(f"  {line}" for line in (*rows, *code)),
            *filter(None, [*remedies, rounding(types, " ".join(remedies))]),
        ]
    )


def _row(leaf: RefusedLeaf, before: RefusedLeaf | None) -> tuple[str, ...]:
    """A leaf in columns. A leaf that several branches return has its path once."""
    origin, cause, begun = places(leaf.origin, leaf.cause, leaf.begun)
    is_known = leaf.branch and before is not None and before.path == leaf.path
    types = " -> ".join(map(_type, leaf.values))
    made = ", ".join(filter(None, [leaf.unchanged, origin]))
    return "" if is_known else leaf.path, leaf.branch, types, made, cause, begun


def _type(value: Leaf) -> str:
    return type(value).__name__ if is_python_number(value) else type_text(value)
