"""What each line of a function names, by its code: a file may have changed or be gone."""

import dataclasses
import dis
import functools
import re
import types
from typing import Any

from .values import names_in_jax

_OF_VARIABLE = re.compile("(?=.*(FAST|NAME|GLOBAL|DEREF))(STORE|LOAD)_")


@dataclasses.dataclass
class Words:
    """What a line of a function names.

    Attributes:
        end: the last line of its statement.
        stored: the variables that it assigns, in order.
        read: the other variables, in order.
        attributes: attributes and keys.
    """

    end: int = 0
    stored: dict[str, None] = dataclasses.field(default_factory=dict)
    read: dict[str, None] = dataclasses.field(default_factory=dict)
    attributes: set[str] = dataclasses.field(default_factory=set)

    def asks_for(self, dtype: object) -> bool:
        """Returns whether the line casts, or names a dtype such as `jnp.float32`."""
        words = {*self.attributes, *self.read}
        if "astype" in words:
            return True
        return any(str(dtype) in names_in_jax(word) for word in words)


def words_at(code: types.CodeType, line: int) -> Words:
    """Returns the words of a line; those of a statement at its first line."""
    words_by_line = _words_by_line(code)
    return words_by_line.get(line, Words(line))


@functools.cache
def _words_by_line(code: types.CodeType) -> dict[int, Words]:
    words_by_line: dict[int, Words] = {}
    for instruction in dis.get_instructions(code):
        positions: Any = instruction.positions
        line = positions.lineno or 0  # an instruction may have none
        words = words_by_line.setdefault(line, Words(line))
        end = positions.end_lineno or 0
        words.end = max(words.end, end)
        _add_instruction(words, instruction)
    for line, words in words_by_line.items():
        for inner_line in range(line + 1, words.end + 1):
            inner = words_by_line.get(inner_line, words)
            words.read.update(inner.read)
            words.attributes.update(inner.attributes)
    return words_by_line


def _add_instruction(words: Words, instruction: dis.Instruction) -> None:
    operation = instruction.opname
    values = instruction.argval
    if not isinstance(values, tuple):
        values = (values,)
    if not _OF_VARIABLE.match(operation):
        # Attributes, keys, and the names of keywords.
        for value in values:
            if isinstance(value, str):
                words.attributes.add(value)
        return
    names_by_access = {"STORE": words.stored, "LOAD": words.read}
    # `STORE_FAST_LOAD_FAST` is of two variables.
    accesses = re.findall("STORE|LOAD", operation)
    for access, variable in zip(accesses, values):
        names = names_by_access[access]
        names[variable] = None
