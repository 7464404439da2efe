"""What an audit finds: a leaf that changed its type, an operation in 64 bits."""

import dataclasses
from typing import Literal

from .origins import Origin

Kind = Literal["dtype", "weak_type", "shape", "structure"]
Where = Literal["state", "updates", "carry"]


@dataclasses.dataclass(frozen=True)
class Drift:
    """A leaf that came out of an update or a step with another type than it went in with.

    Attributes:
        path: of the leaf, in the state or in the updates, as `jax.tree_util.keystr`
            prints it. In a carry with the name of the parameter before it.
        kind: what changed: "structure", "shape", "dtype" or "weak_type". Of updates, a
            shape that the param does not have and a leaf that there is no param for.
        before: what it was; for a leaf of the updates, what its param is.
        after: what it is then.
        where: "state" or "updates" of an optimizer, "carry" of a step.
        origin: the line of the promotion. For a leaf that was weak at first the line that
            made it so, in `init` say. None if there is none: a gradient may be as wide.
        cause: the line that made the wider operand of that promotion. None if the leaf
            was cast explicitly, or if the operand is an input.
    """

    path: str
    kind: Kind
    before: str
    after: str
    where: Where
    origin: Origin | None = None
    cause: Origin | None = None

    @property
    def name(self) -> str:
        """The path, with the word "updates" before that of an update.

        The word "state" where the path is empty because the state is one leaf.
        """
        if self.where == "updates":
            return f"updates{self.path}"
        return self.path or "state"


@dataclasses.dataclass(frozen=True)
class WideOperation:
    """A 64-bit floating operation in an optimizer that was given nothing of 64 bits.

    Attributes:
        primitive: its name.
        type: what it gives: "float64[]", "float64[3,2]".
        is_array: whether that is more than a scalar.
        origin: the line of it.
    """

    primitive: str
    type: str
    is_array: bool
    origin: Origin | None
