"""Finds the source line that created a constant.

A jaxpr holds the value of `jnp.asarray(0.9)` or of a closed-over `np.float32(2)`, but not
the line that created it. `Watch` sees the calls from the user's code into JAX.
"""

import functools
import itertools
import sys
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Iterator,
)
from types import CodeType, FrameType

import jax
import numpy as np
from jax.core import Tracer

from .._leaves.dtypes import is_python_number, is_weak, kind
from .._leaves.internals import LIKE
from .._leaves.types import Aval, Leaf, PyTree
from .._program.trace import strong_type
from .._source.assignments import is_in_head
from .._source.files import is_installed, is_users
from .._source.origin import Origin, callers, origin_of_frame
from .bindings import bound, words_of
from .calls import Left
from .region import Matches
from .rules import RuleLines
from .traced import recorded


class Watch(RuleLines):
    """While entered, remembers the lines that created the arrays passed to JAX."""

    def __init__(self):
        super().__init__()
        # Keeps the values alive, so that no other gets the same id.
        self._made: dict[int, tuple[PyTree, Origin]] = {}
        # By their lines; for a line in a loop, once what is alike.
        self._passed: dict[tuple[str, int], dict[Hashable, tuple[Leaf, Origin]]] = {}
        self._given: dict[tuple[str, int], dict[int, Leaf]] = {}
        # What `zeros_like` and its kind were given, by the lines that called them.
        self._models: dict[tuple[str, int], list[tuple[Leaf, Origin]]] = {}
        self._origins: dict[Hashable, tuple[Origin, object]] = {}

    def __enter__(self):
        self._entered = sys._getframe(1)
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        del self._entered

    def saw(self, line: Origin) -> bool:
        """Whether arrays were passed to JAX on a line."""
        return (line.file, line.line) in self._passed

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
        passed = self._passed.get((user.file, user.line), {}).values()
        is_of_type = lambda array: matches(strong_type(array)) and not is_weak(array)
        alike = [pair for pair in passed if is_of_type(pair[0])]
        # A tracer may be what the line has computed from the constant.
        alike = [pair for pair in alike if not isinstance(pair[0], Tracer)] or alike
        same = [pair for pair in alike if _may_be(pair[0], aval, value)]
        makers = {maker for _, maker in same}
        if len(makers) > 1:  # the line computes with a constant from another line
            makers = {maker for maker in makers if maker.line != user.line}
        maker = makers.pop() if len(makers) == 1 else user
        if maker == user and all(isinstance(array, _HOST) for array, _ in same):
            # NumPy, unseen, has computed it on the line from another one.
            others = {other for array, other in alike if isinstance(array, _HOST)} - {user}
            maker = others.pop() if len(others) == 1 else maker
        if is_installed(maker.file) or is_in_head(maker.file, maker.line):
            held = (holding(array) for array, _ in (*same, *alike))
        else:  # it may come in as a default or from a module, or be bound by `partial`
            given = self._given.get((user.file, user.line), {}).values()
            given = (x for x in given if is_of_type(x) and _may_be(x, aval, value))
            arrays = (*(array for array, _ in same), *given) if maker == user else ()
            held = map(holding, arrays)
        return next(filter(None, held), maker)

    def model(self, user: Origin, matches: Matches) -> Origin | None:
        """The line that made the `x` of the `zeros_like(x)` on a line."""
        models = self._models.get((user.file, user.line), ())
        makers = {line for value, line in models if matches(strong_type(value))}
        return makers.pop() if len(makers) == 1 else None

    def made(self, value: PyTree) -> Origin | None:
        """The line that created an array or a container."""
        made = self._made.get(id(value))
        return made[1] if made else None

    def into_user(self, frame: FrameType) -> Left:
        return functools.partial(self._from_user, super().into_user(frame), frame)

    def into_jax(self, frame: FrameType, user: FrameType) -> Left:
        line = user.f_code.co_filename, user.f_lineno
        for value in _arrays(frame.f_locals.values()):
            maker = recorded(value).root or self.made(value) or bound(user, value)
            if maker is None and not isinstance(value, Tracer):
                maker = self._computed(user, value) or self._origin(user)
            if maker is not None:
                passed = self._passed.setdefault(line, {})
                passed.setdefault((_content(value), maker), (value, maker))
                if LIKE.are_in(frame.f_code.co_name):
                    self._models.setdefault(line, []).append((value, maker))
            else:  # an argument of the traced function, or bound to it by `partial`
                self._given.setdefault(line, {}).setdefault(id(value), value)
        return functools.partial(self._from_jax, user)

    def _computed(self, frame: FrameType, result: Leaf) -> Origin | None:
        """The line that created what NumPy, unseen, has computed an array from.

        That is the one variable on the line that holds an array of NumPy of its dtype.
        """
        names = words_of(frame.f_code.co_filename, frame.f_lineno)
        known = {**frame.f_globals, **frame.f_locals}
        values = [known[name] for name in names if name in known]
        operands = [
            value
            for value in values
            if isinstance(value, (np.generic, np.ndarray)) and value.dtype == result.dtype
        ]
        if len(operands) != 1:
            return None
        return self.made(operands[0]) or bound(frame, operands[0])

    def _origin(self, frame: FrameType) -> Origin:
        """The current line of a running function."""
        is_inside = lambda caller: caller is not self._entered
        outer = itertools.takewhile(is_inside, callers(frame))
        calls = [(caller.f_code, caller.f_lasti) for caller in (frame, *outer)]
        place = tuple((id(code), instruction) for code, instruction in calls)
        if place not in self._origins:
            # Keeps the code alive, so that no other gets the same id.
            self._origins[place] = origin_of_frame(frame, within=self._entered), calls
        return self._origins[place][0]

    def _from_jax(self, user: FrameType, value: PyTree) -> None:
        if _is_array(value):
            self._made.setdefault(id(value), (value, self._origin(user)))

    def _from_user(self, left: Left, frame: FrameType, value: PyTree) -> None:
        left(value)
        if _is_lookup(frame.f_code):  # what it returns was made before
            return
        # Equal Python scalars may be one object, wherever they come from.
        if value is None or is_python_number(value):
            return
        frames = itertools.chain([frame], callers(frame))
        maker = next((frame for frame in frames if _is_maker(frame, value)), None)
        if maker is None:
            return
        origin = self._origin(maker)
        self._made.setdefault(id(value), (value, origin))
        # The pair of new updates and new state is taken apart at once.
        for item in value if type(value) is tuple else ():
            if isinstance(item, (tuple, list, dict)):
                self._made.setdefault(id(item), (item, origin))


def _is_maker(frame: FrameType, value: PyTree) -> bool:
    """Whether somebody wrote a function to make what it returns.

    Not so JAX's code that maps a tree; a constructor, such as a NamedTuple's, which has no
    file; and the `replace` that Flax gives a user's dataclass.
    """
    code, class_ = frame.f_code, type(value)
    if not is_users(code.co_filename) or _is_code_of(class_.__new__, code):
        return False
    if not is_installed(code.co_filename):
        return True
    is_method = _is_code_of(getattr(class_, code.co_name, None), code)
    return not is_method


def _is_lookup(code: CodeType) -> bool:
    """Whether a package looks up a field with it, as that of an Equinox module."""
    is_one = code.co_name in ("__getattribute__", "__getattr__")
    return is_one and is_installed(code.co_filename)


def _is_code_of(function: object, code: CodeType) -> bool:
    return getattr(function, "__code__", None) is code


def _may_be(passed: Leaf, aval: Aval, value: Leaf) -> bool:
    """Whether an array that a line passes to JAX is a certain constant, as far as known."""
    if np.shape(passed) != aval.shape:
        return False
    is_known = value is not None and not isinstance(passed, Tracer)
    if not is_known or np.size(passed) > _LARGE or kind(aval.dtype) is None:
        return True
    one, other = (np.asarray(array).astype(aval.dtype) for array in (passed, value))
    return one.tobytes() == other.tobytes()


def _content(passed: Leaf) -> Hashable:
    """The type and the value of an array; its identity where that takes long to read."""
    about = passed.shape, passed.dtype, is_weak(passed)
    if isinstance(passed, (np.generic, np.ndarray)) and passed.size <= _LARGE:
        return *about, passed.tobytes()
    return *about, "tracer" if isinstance(passed, Tracer) else id(passed)


_HOST = np.generic, np.ndarray
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
