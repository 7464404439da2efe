"""Finds the source line that created a constant.

A jaxpr holds the value of `jnp.asarray(0.9)` or of a closed-over `np.float32(2)`, but not
the line that created it. `Watch` sees the calls from the user's code into JAX.
"""

import contextlib
import functools
import inspect
import itertools
import re
import sys
from collections.abc import (
    Callable,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from types import CodeType, FrameType

import jax
import numpy as np
from jax.core import Tracer

from .._leaves.dtypes import is_python_number, is_weak, kind
from .._leaves.files import is_installed, is_users, package
from .._leaves.types import Aval, Leaf, PyTree
from .bindings import bound, words_of
from .blame import Matches
from .calls import Calls, Left
from .definitions import is_in_head
from .origins import Origin, OwnLines, callers, origin_of_frame
from .trace import strong_type


class Watch(Calls):
    """While entered, remembers the lines that created the arrays passed to JAX.

    What the user's own rules of a `custom_vjp` compute gets their lines.
    """

    def __init__(self):
        self._lines = OwnLines()
        self._others: dict[int, CodeType] = {}  # by identity: to hash one takes long
        # Calls inside of JAX, or of another function that is not the user's, to the like.
        self.ignored: Container[int] = self._others
        # Keeps the values alive, so that no other gets the same id.
        self._made: dict[int, tuple[PyTree, Origin]] = {}
        self._used: dict[tuple[str, int], list[tuple[Leaf, Origin]]] = {}
        self._origins: dict[Hashable, tuple[Origin, object]] = {}
        self._distinct: dict[tuple[str, int], list[tuple[Leaf, Origin]]] = {}

    def __enter__(self):
        self._lines.__enter__()
        self._entered = sys._getframe(1)
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        del self._entered
        self._lines.__exit__()

    def saw(self, line: Origin) -> bool:
        """Whether arrays were passed to JAX on a line."""
        return (line.file, line.line) in self._used

    def maker(
        self,
        user: Origin,
        matches: Matches,
        aval: Aval,
        value: Leaf,
        holding: Callable[[Leaf], Origin | None],
    ) -> Origin:
        """The line that created the constant that a line uses.

        The line `user` itself if it creates the constant, or if nothing is known of it.

        Args:
            user: the line.
            matches: whether an abstract value has the property that the constant forces.
            aval: the constant's abstract value.
            value: the constant; None if it is not known.
            holding: finds the user's line that made what holds a value, for a constant
                that a package was given.
        """
        used = self._unlike(user.file, user.line)
        is_of_type = lambda each: matches(strong_type(each)) and not is_weak(each)
        alike = [pair for pair in used if is_of_type(pair[0])]
        # A tracer may be what the line has computed from the constant.
        alike = [pair for pair in alike if not isinstance(pair[0], Tracer)] or alike
        same = [pair for pair in alike if _may_be(pair[0], aval, value)]
        makers = {maker for _, maker in same}
        if len(makers) > 1:  # the line computes with a constant from another line
            makers = {each for each in makers if each.line != user.line}
        made = makers.pop() if len(makers) == 1 else user
        if is_installed(made.file) or is_in_head(made.file, made.line):
            held = (holding(each) for each, _ in (*same, *alike))
            return next(filter(None, held), made)
        return made

    def _unlike(self, file: str, line: int) -> Sequence[tuple[Leaf, Origin]]:
        """What was passed to JAX on a line, and its maker, once for all that are alike.

        A line in a loop passes something for each leaf.
        """
        if (file, line) not in self._distinct:
            unlike: dict[Hashable, tuple[Leaf, Origin]] = {}
            for value, maker in self._used.get((file, line), ()):
                unlike.setdefault((_content(value), maker), (value, maker))
            self._distinct[file, line] = [*unlike.values()]
        return self._distinct[file, line]

    def made(self, value: PyTree) -> Origin | None:
        """The line that created an array or a container."""
        made = self._made.get(id(value))
        return made[1] if made else None

    def call(self, frame: FrameType) -> Left | None:
        code = frame.f_code
        if is_users(code.co_filename) and not _is_named_tuple(frame):
            leave = contextlib.ExitStack()
            leave.callback(setattr, self, "ignored", self.ignored)
            self.ignored = ()
            if _is_own(code) and not (frame.f_back and _is_own(frame.f_back.f_code)):
                leave.push(self._lines.start())
            return functools.partial(self._return_from_user, leave, frame)
        self._others[id(code)] = code
        back = frame.f_back
        if self.ignored is self._others:
            return None
        while back is not None and not is_users(back.f_code.co_filename):
            frame, back = back, back.f_back  # whose call was not seen
        if back is None:
            return None
        for value in _arrays(frame.f_locals.values()):
            maker = self.made(value) or bound(back, value)
            if maker is None and not isinstance(value, Tracer):
                maker = self._computed(back, value) or self._origin(back)
            if maker is not None:  # None for an argument of the traced function
                key = back.f_code.co_filename, back.f_lineno
                self._used.setdefault(key, []).append((value, maker))
        self.ignored = self._others
        return functools.partial(self._return_to_user, back)

    def is_inner(self, code: CodeType) -> bool:
        """Whether JAX calls a function, and users do not for arrays."""
        return package(code.co_filename) != "numpy" and id(code) not in self._public

    @functools.cached_property
    def _public(self) -> Container[int]:
        return _public_code(len(sys.modules))

    def _computed(self, frame: FrameType, value: Leaf) -> Origin | None:
        """The line that created what NumPy, unseen, has computed a value from.

        That is the one variable on the line that holds a value of NumPy of that dtype.
        """
        names = words_of(frame.f_code.co_filename, frame.f_lineno)
        known = {**frame.f_globals, **frame.f_locals}
        found = [known[name] for name in names if name in known]
        found = [
            each
            for each in found
            if isinstance(each, (np.generic, np.ndarray)) and each.dtype == value.dtype
        ]
        return self.made(found[0]) or bound(frame, found[0]) if len(found) == 1 else None

    def _origin(self, frame: FrameType) -> Origin:
        """The current line of a running function."""
        inner = itertools.takewhile(lambda each: each is not self._entered, callers(frame))
        outer = (each for each in inner if is_users(each.f_code.co_filename))
        calls = [(each.f_code, each.f_lineno) for each in (frame, *outer)]
        place = tuple((id(code), line) for code, line in calls)
        if place not in self._origins:
            # Keeps the code alive, so that no other gets the same id.
            self._origins[place] = origin_of_frame(frame, within=self._entered), calls
        return self._origins[place][0]

    def _return_to_user(self, back: FrameType, value: PyTree) -> None:
        self.ignored = ()
        if _is_array(value):
            self._made.setdefault(id(value), (value, self._origin(back)))

    def _return_from_user(
        self, leave: contextlib.ExitStack, frame: FrameType, value: PyTree
    ) -> None:
        leave.close()
        # Equal Python scalars may be one object, wherever they come from.
        if value is None or is_python_number(value):
            return
        maker: FrameType | None = frame
        while maker is not None and not _is_maker(maker, value):
            maker = maker.f_back
        if maker is not None:
            origin = self._origin(maker)
            self._made.setdefault(id(value), (value, origin))
            # The pair of new updates and new state is taken apart at once.
            pair = value if type(value) is tuple else ()
            for item in pair:
                if isinstance(item, (tuple, list, dict)):
                    self._made.setdefault(id(item), (item, origin))


_FOR_USERS = re.compile(r"jax\.(image|lax|nn|numpy|random|scipy|tree)(\.[a-z]\w*)*")


@functools.lru_cache(1)
def _public_code(modules: int) -> Mapping[int, CodeType]:
    """The code of JAX, by identity, that users call for arrays.

    Args:
        modules: how many are imported; JAX imports some late.
    """
    named = [*sys.modules.items()]
    public = [module for name, module in named if _FOR_USERS.fullmatch(name)]
    things = [thing for module in public for thing in vars(module).values()]
    things += [vars(type(thing)).get("__call__") for thing in things]
    attributes = [getattr(Tracer, each, None) for each in {*dir(jax.Array)} - {"__init__"}]
    things += [getattr(each, "fget", None) or each for each in attributes]
    codes = [each.__code__ for each in things if inspect.isfunction(each)]
    return {id(code): code for code in codes}


def _is_named_tuple(frame: FrameType) -> bool:
    """Whether a function makes a NamedTuple. Its code has no file, as in `python -c`."""
    is_without_file = frame.f_code.co_filename == "<string>"
    return is_without_file and str(frame.f_globals.get("__name__")).startswith(
        "namedtuple_"
    )


def _is_own(code: CodeType) -> bool:
    return is_users(code.co_filename) and not is_installed(code.co_filename)


def _is_maker(frame: FrameType, made: PyTree) -> bool:
    """Whether somebody wrote a function to make what it returns.

    Not so the code without a file that makes a NamedTuple, JAX's code that maps a tree, the
    `replace` of a Flax dataclass, and the function by which an Equinox module returns its
    fields.
    """
    name, file = frame.f_code.co_name, frame.f_code.co_filename
    if name == "replace" and type(frame.f_locals.get("self")) is type(made):
        return False
    is_access = name in ("__getattribute__", "__getattr__")
    return file != "<string>" and is_users(file) and not is_access


def _may_be(passed: Leaf, aval: Aval, value: Leaf) -> bool:
    """Whether an array that a line passes to JAX is a certain constant, as far as known."""
    if passed is value:
        return True
    if np.shape(passed) != aval.shape:
        return False
    is_known = value is not None and not isinstance(passed, Tracer)
    if not is_known or np.size(passed) > _LARGE or kind(aval.dtype) is None:
        return True
    one, other = (np.asarray(each).astype(aval.dtype) for each in (passed, value))
    return one.tobytes() == other.tobytes()


def _content(passed: Leaf) -> Hashable:
    """The type and the value of an array; its identity where the value cannot be read."""
    about = passed.shape, passed.dtype, is_weak(passed)
    if isinstance(passed, Tracer):
        return *about, "tracer"
    is_readable = np.size(passed) <= _LARGE and kind(passed.dtype) is not None
    if is_readable and isinstance(passed, jax.Array):
        is_readable = passed.is_fully_addressable and not passed.is_deleted()
    return *about, np.asarray(passed).tobytes() if is_readable else id(passed)


# The values of arrays are compared up to this size.
_LARGE = 1000


def _is_array(value: Leaf) -> bool:
    # Newer JAX traces constants too, and finds out later that they are constants.
    return isinstance(value, (np.generic, np.ndarray, jax.Array))


def _arrays(values: Iterable[PyTree]) -> Iterator[Leaf]:
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _arrays(value)
        elif _is_array(value):
            yield value
