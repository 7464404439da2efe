"""Translates paths in a library's own trees into paths in the user's objects."""

import itertools
import re
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple

from .._carry.modules import contents, objects
from .._carry.places import Names
from .._leaves.paths import indices
from .._leaves.types import PyTree
from .._source.files import is_installed, package
from .._source.origin import callers


class _VariablePath(NamedTuple):
    """A Variable of an NNX object.

    Attributes:
        path: as the user writes it: `model.layers[0].kernel`.
        inside: its path in the object, as Flax's own trees have it.
        number: the position of the object in the carry.
    """

    path: str
    inside: str
    number: int


def users_path(caller: FrameType | None, carry: int) -> Callable[[str], str]:
    """A function that translates a path in Flax's own carry to the user's objects.

    Args:
        caller: the frame that called JAX's loop. If that is not in Flax NNX, or its
            arguments are gone, paths stay as they are.
        carry: the position of the carry in the body of JAX's loop.
    """
    places = list(_places(caller, carry))

    def translated(path: str) -> str:
        plain = _plain(path)
        fitting = [place for place in places if plain.endswith(place.inside)]
        longest = max((len(place.inside) for place in fitting), default=0)
        fitting = [place for place in fitting if len(place.inside) == longest]
        numbers = filter(str.isdigit, indices(plain[: len(plain) - longest]))
        last = [*numbers][-2:]
        of_object = [place for place in fitting if str(place.number) in last]
        return (of_object or fitting)[0].path if fitting else path

    return translated


def _places(caller: FrameType | None, carry: int) -> Iterator[_VariablePath]:
    number = 0
    for label, given in _arguments(caller, carry):
        for path, node in objects(given).items():
            for inside in contents(node).values:
                yield _VariablePath(label + path + inside, _plain(inside), number)
            number += 1


def _arguments(caller: FrameType | None, carry: int) -> Iterator[tuple[str, PyTree]]:
    """The arguments of the user's function in a loop or branch of Flax NNX, by name."""
    frames = [] if caller is None else [caller, *callers(caller)]
    of_flax = itertools.takewhile(lambda x: _is_of_flax(x.f_code.co_filename), frames)
    own = [frame.f_locals for frame in of_flax]
    for names in own:
        if "init_val" in names and "body_fun" in names:
            yield Names.of(names["body_fun"]).at(carry), names["init_val"]
            return
    functions = [names.get(name) for names in own for name in ("true_fun", "f")]
    names = Names.of(next(filter(is_users_function, functions), None) or (lambda: None))
    given = [names.get(name) for names in own for name in ("operands", "args")]
    given = next((x for x in reversed(given) if isinstance(x, tuple) and objects(x)), ())
    for position, value in enumerate(given):
        yield names.at(position), value


def _is_of_flax(file: str) -> bool:
    return is_installed(file) and package(file) == "flax"


def is_users_function(function: object) -> bool:
    """Whether the user wrote a function."""
    code = getattr(function, "__code__", None)
    return code is not None and not is_installed(code.co_filename)


def _plain(path: str) -> str:
    """A path with attributes in place of keys, and without Flax's own nodes."""
    path = re.sub(r"\['(\w+)'\]", r".\1", path).removesuffix(".value")
    return re.sub(r"\.states\[\d+\]", "", path)
