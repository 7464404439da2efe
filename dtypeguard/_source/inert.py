"""Looks into objects of unknown types, and runs no code of theirs.

An attribute, a comparison, a length or a text of such an object may be a user's function: a
`__getattr__` of Flax runs `setup()`. Even `isinstance` asks an object for its `__class__`.
"""

import dis
import functools
import inspect
from collections.abc import Iterator
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
)
from typing import Any

_mro = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__
_module = type.__dict__["__module__"].__get__


def is_a(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Whether a value is of a type, by what it is and not by what it says."""
    return issubclass(type(value), kinds)


def static(kind: type, name: str) -> Any:
    """What a class has under a name, as it is written there; None if nothing."""
    spaces = map(_namespace, _mro(kind))
    return next((space[name] for space in spaces if name in space), None)


def package_of(kind: type) -> str:
    """The package of a class, by its module."""
    module = _module(kind)
    return module.partition(".")[0] if type(module) is str else ""


def fields_of(value: object) -> dict[str, Any]:
    """The variables of an object: its `__dict__`, and what its slots hold."""
    found: dict[str, Any] = {}
    for space in map(_namespace, _mro(type(value))):
        variables = space.get("__dict__")
        if type(variables) in (GetSetDescriptorType, MemberDescriptorType):
            known = variables.__get__(value)
            found = (dict(known) if type(known) in (dict, MappingProxyType) else {}) | found
        for name, slot in space.items():
            if type(slot) is MemberDescriptorType and name not in ("__dict__", *found):
                try:
                    found[name] = slot.__get__(value)
                except AttributeError:  # not assigned yet
                    continue
    return found


def items_of(value: Any) -> Iterator[tuple[object, Any]]:
    """The items of a dict, a list or a tuple, or of a subclass; none of others.

    Those of a NamedTuple come by their names.
    """
    if is_a(value, dict):
        yield from dict.items(value)
    elif is_a(value, list):
        yield from enumerate(list.__iter__(value))
    elif is_a(value, tuple):
        names = static(type(value), "_fields")
        is_named = type(names) is tuple and len(names) == tuple.__len__(value)
        items = tuple.__iter__(value)
        yield from zip(names, items) if is_named else enumerate(items)


def code_of(function: Any, is_written: bool = False) -> CodeType | None:
    """The code that runs when a function or an object is called; None if it is in C.

    Args:
        function: any object.
        is_written: whether to look into wrappers that say what they wrap.
    """
    for _ in range(20):  # wrappers of one function
        inner = fields_of(function).get("__wrapped__") if is_written else None
        if type(function) is MethodType:
            function = function.__func__
        elif type(function) is functools.partial:
            function = function.func
        elif inner is not None:
            function = inner
        elif type(function) is FunctionType:
            return function.__code__
        else:
            call = static(type(function), "__call__")
            return call.__code__ if type(call) is FunctionType else None
    return None


written_code = functools.partial(code_of, is_written=True)


def variables_of(frame: FrameType) -> Any:
    """The local variables of a running function; none of a namespace of unknown type."""
    variables: Any = frame.f_locals
    if type(variables) is dict:
        return variables
    if type(variables) is not _LOCALS:
        return {}
    unsafe = _swapped(frame.f_code)
    return {x: variables[x] for x in variables if x not in unsafe} if unsafe else variables


# In functions a proxy, from Python 3.13 on.
_LOCALS = (lambda: type(inspect.currentframe().f_locals))()  # pyright: ignore[reportOptionalMemberAccess]: CPython has frames
_known: dict[int, tuple[CodeType, frozenset[str]]] = {}


def _swapped(code: CodeType) -> frozenset[str]:
    """The variables in cells that a comprehension in a function uses for its own.

    While it runs, Python 3.13.0 crashes where one of them is read from outside.
    """
    if id(code) not in _known:  # to hash code takes long
        every = dis.get_instructions(code) if code.co_cellvars else ()
        names = {x.argval for x in every if x.opname == "LOAD_FAST_AND_CLEAR"}
        _known[id(code)] = code, frozenset(names & {*code.co_cellvars})
    return _known[id(code)][1]
