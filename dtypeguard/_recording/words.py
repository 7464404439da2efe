"""What each line of a function names, by its code: a file may have changed or be gone."""

import dataclasses
import dis
import functools
import re
import types
from collections.abc import Sequence

_CHANGING = ("STORE_ATTR", "STORE_SUBSCR")
_OF_VARIABLE = re.compile("(?=.*(FAST|NAME|GLOBAL|DEREF))(STORE|LOAD)_")
_NAME_OF_DTYPE = re.compile(r"(b?float|u?int|complex)\d+(_\w+)?")
_LONGEST_STATEMENT = 50  # lines


@dataclasses.dataclass
class Words:
    """What a line of a function names.

    Attributes:
        end: the last line of its statement.
        stored: the variables that it assigns, in order.
        read: the other variables, in order.
        attributes: attributes and keys.
        calls: whether it calls something, or changes an object.
    """

    end: int
    stored: dict[str, None] = dataclasses.field(default_factory=dict)
    read: dict[str, None] = dataclasses.field(default_factory=dict)
    attributes: set[str] = dataclasses.field(default_factory=set)
    calls: bool = False

    def asks_for(self, dtype: object) -> bool:
        """Returns whether it names a dtype, so that operands do not decide the result's.

        A dtype that it names in full, such as `jnp.float32`, decides no result of another.
        """
        words = {*self.attributes, *self.read}
        dtypes = {word for word in words if _NAME_OF_DTYPE.fullmatch(word)}
        if not dtypes:
            return not words.isdisjoint(("astype", "dtype"))
        # With x64 off JAX halves a dtype of 64 bits.
        return not dtypes.isdisjoint((str(dtype), str(dtype).replace("32", "64")))

    def names(self, path: Sequence[str]) -> bool:
        """Returns whether the line names a part of a variable: `x`, `x[0]`, `x.scale`."""
        are_named = [part.isdigit() or part in self.attributes for part in path]
        return all(are_named)


@functools.cache
def words_of(code: types.CodeType) -> dict[int, Words]:
    """Returns the words of each line; those of a statement at its first line."""
    words_by_line: dict[int, Words] = {}
    for instruction in dis.get_instructions(code):
        line, end, *_ = instruction.positions or (None, None)
        if line is not None and end is not None:
            words = words_by_line.setdefault(line, Words(line))
            end = min(end, line + _LONGEST_STATEMENT)
            words.end = max(words.end, end)
            _add_instruction(words, instruction)
    for line, words in words_by_line.items():
        for inner_line in range(line + 1, words.end + 1):
            inner = words_by_line.get(inner_line)
            if inner is not None:
                words.read.update(inner.read)
                words.attributes.update(inner.attributes)
    return words_by_line


def _add_instruction(words: Words, instruction: dis.Instruction) -> None:
    operation = instruction.opname
    value = instruction.argval
    if _OF_VARIABLE.match(operation):
        # `STORE_FAST_LOAD_FAST` is of two variables.
        variables = value if isinstance(value, tuple) else (value,)
        for access, variable in zip(re.findall("STORE|LOAD", operation), variables):
            names = words.stored if access == "STORE" else words.read
            names[variable] = None
    elif isinstance(value, str):
        words.attributes.add(value)
    elif isinstance(value, tuple):  # the names of keywords, before a call
        names = {name for name in value if isinstance(name, str)}
        words.attributes |= names
    if operation.startswith((*_CHANGING, "CALL")):
        words.calls = True
