"""Reads from the code of a function what each of its lines names."""

import dis
import re
from collections.abc import Sequence
from types import CodeType
from typing import NamedTuple

_DTYPE = re.compile(r"astype|dtype|(b?float|u?int|complex)\d+(_\w+)?")
_KEYWORDS = "KW_NAMES", "LOAD_CONST"  # before a call
_CHANGING = "STORE_ATTR", "STORE_SUBSCR"
_OF_VARIABLE = re.compile("(?=.*(FAST|NAME|GLOBAL|DEREF))(STORE|LOAD)_")
_LONG = 50  # lines of a statement


class Words(NamedTuple):
    """What a line of a function names.

    Attributes:
        stored: the variables that it assigns.
        read: the other variables.
        others: attributes and keys.
        is_making: whether it calls something, or assigns a part of an object.
        is_changing: whether it assigns a part of an object.
        end: the last line of its statement.
    """

    stored: dict[str, None]
    read: dict[str, None]
    others: set[str]
    is_making: bool
    is_changing: bool = False
    end: int = 0

    @property
    def has_dtype(self) -> bool:
        """Whether it names a dtype, so that what it reads does not decide its own."""
        names = *self.others, *self.read
        is_reshaped = "shape" in names and any(x.endswith("_like") for x in names)
        return is_reshaped or any(map(_DTYPE.fullmatch, names))

    def names(self, path: Sequence[str]) -> bool:
        """Whether the line names a part of a variable: `x`, `x[0]`, `x.scale`."""
        return all(part.isdigit() or part in self.others for part in path)


def words_of(code: CodeType) -> dict[int, Words]:
    """What each line names; the first line of a statement what all of it does."""
    found: dict[int, Words] = {}
    for each in dis.get_instructions(code):
        line, end, *_ = each.positions or (None, None)
        if line is None or end is None:
            continue
        words = found.setdefault(line, Words({}, {}, set(), False, end=line))
        name, value = each.opname, each.argval
        if _OF_VARIABLE.match(name):
            # `STORE_FAST_LOAD_FAST` is of two variables.
            values = value if isinstance(value, tuple) else (value,)
            for kind, variable in zip(re.findall("STORE|LOAD", name), values):
                (words.stored if kind == "STORE" else words.read)[variable] = None
        elif isinstance(value, str):
            words.others.add(value)
        elif each.opname in _KEYWORDS and isinstance(value, tuple):
            words.others.update(x for x in value if isinstance(x, str))
        changing = words.is_changing or name.startswith(_CHANGING)
        making = words.is_making or changing or name.startswith("CALL")
        end = max(words.end, min(end, line + _LONG))
        found[line] = words._replace(is_making=making, is_changing=changing, end=end)
    for line, words in found.items():
        for inner in filter(None, map(found.get, range(line + 1, words.end + 1))):
            words.read.update(inner.read)
            words.others.update(inner.others)
    return found
