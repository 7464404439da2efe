"""What a note says to write: its text, the leaves that it mends, and its trial."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .finding import RefusedLeaf
from .reruns import Outcome


class Way(NamedTuple):
    """One way of writing it.

    Attributes:
        text: a clause, such as "write f(x) in place of x".
        trial: tells whether it mends the error.
    """

    text: str
    trial: Callable[[], Outcome]


def untried() -> None:
    """The trial of what cannot be tried."""


class Remedy(NamedTuple):
    """Ways of mending some leaves, the best first.

    Attributes:
        ways: of which one is to be chosen.
        leaves: that each of them mends.
        is_first_enough: whether only the first that works is said.
        otherwise: what is said if none does.
    """

    ways: Sequence[Way]
    leaves: Sequence[RefusedLeaf]
    is_first_enough: bool = False
    otherwise: str = ""

    def tried(self) -> tuple[str, bool]:
        """The sentence without its end, and whether something was tried with success."""
        said: dict[str, Outcome] = {}
        for text, trial in self.ways:
            if text and text not in said and (outcome := trial()) is not False:
                said[text] = outcome
                if self.is_first_enough and outcome:
                    return text, True
        if self.is_first_enough:
            said = dict([*said.items()][:1])
        text = ", or ".join(x if y else f"{x} (not tried)" for x, y in said.items())
        return text or self.otherwise, any(said.values())
