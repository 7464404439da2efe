"""Translates paths in Flax NNX's own trees into paths in the user's objects."""

import itertools
import re
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .._carry.modules import contents, objects
from .._carry.places import Names
from .._leaves.groups import indices
from .._leaves.types import PyTree
from .._source.files import is_installed, package
from .._source.origin import callers


def users_path(caller: FrameType | None, carry: int) -> Callable[[str], str]:
    """A function that translates a path in Flax's own carry to the user's objects.

    Args:
        caller: the frame that called JAX's loop. If that is not in Flax NNX, or its
            arguments are gone, paths stay as they are.
        carry: the position of the carry in the body of JAX's loop.
    """
    known = [  # a Variable's path in its object, as Flax has it, and as the user writes it
        (_plain(inside), label + path + inside, number)
        for number, (label, path, node) in enumerate(_objects(caller, carry))
        for inside in contents(node).values
    ]

    def translated(path: str) -> str:
        plain = _plain(path)
        fitting = [place for place in known if plain.endswith(place[0])]
        longest = max((len(inside) for inside, _, _ in fitting), default=0)
        fitting = [place for place in fitting if len(place[0]) == longest]
        numbers = filter(str.isdigit, indices(plain[: len(plain) - longest]))
        last = [*numbers][-2:]
        of_object = [place for place in fitting if str(place[2]) in last]
        return (of_object or fitting)[0][1] if fitting else path

    return translated


def _objects(caller: FrameType | None, carry: int) -> Iterator[tuple[str, str, PyTree]]:
    """The objects that the user gave to a loop or branch of Flax NNX, with their names."""
    for label, given in _arguments(caller, carry):
        yield from ((label, path, node) for path, node in objects(given).items())


def _arguments(caller: FrameType | None, carry: int) -> Iterator[tuple[str, PyTree]]:
    frames = [] if caller is None else [caller, *callers(caller)]
    is_of_flax = lambda file: is_installed(file) and package(file) == "flax"
    of_flax = itertools.takewhile(lambda x: is_of_flax(x.f_code.co_filename), frames)
    own = [frame.f_locals for frame in of_flax]
    for names in own:
        if "init_val" in names and "body_fun" in names:
            yield Names.of(names["body_fun"]).at(carry), names["init_val"]
            return
    functions = [each.get(name) for each in own for name in ("true_fun", "f")]
    codes = [getattr(function, "__code__", None) for function in functions]
    users = [f for f, x in zip(functions, codes) if x and not is_installed(x.co_filename)]
    user: Any = next(iter(users), lambda: None)
    names = Names.of(user)
    given = [each.get(name) for each in own for name in ("operands", "args")]
    given = next((x for x in reversed(given) if isinstance(x, tuple) and objects(x)), ())
    yield from ((names.at(position), value) for position, value in enumerate(given))


def _plain(path: str) -> str:
    """A path with attributes in place of keys, and without Flax's own nodes."""
    path = re.sub(r"\['(\w+)'\]", r".\1", path).removesuffix(".value")
    return re.sub(r"\.states\[\d+\]", "", path)
