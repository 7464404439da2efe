"""Looks into objects of unknown types, and runs no code of theirs.

An attribute, a comparison, a length or a text of such an object may be a user's function: a
`__getattr__` of Flax runs `setup()`. Even `isinstance` asks an object for its `__class__`.
"""

import contextlib
import dis
import functools
import inspect
import sys
from collections.abc import Iterator
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
)
from typing import Any

# The descriptors of `type`: an attribute of a class may be computed by its metaclass.
_mro = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__
_module = type.__dict__["__module__"].__get__
# The `__dict__` of an object is found by one of these, unless a user wrote another.
_DICT_DESCRIPTORS = GetSetDescriptorType, MemberDescriptorType


def is_a(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Returns whether a value is of a type, without asking the value."""
    return issubclass(type(value), kinds)


def static(kind: type, name: str) -> Any:
    """Returns the entry of a class under a name, as it is written there, or None."""
    # `getattr` would run properties and `__getattr__`.
    for base in _mro(kind):
        namespace = _namespace(base)
        if name in namespace:
            return namespace[name]
    return None


def package_of(kind: type) -> str:
    """Returns the package of a class, by its module."""
    module = str(_module(kind))  # a class may have a property of that name
    package, _, _ = module.partition(".")
    return package


def fields_of(value: object) -> dict[str, Any]:
    """Returns the variables of an object: those of its `__dict__` and of its slots."""
    fields: dict[str, Any] = {}
    for base in _mro(type(value)):
        namespace = _namespace(base)
        descriptor = namespace.get("__dict__")
        if type(descriptor) in _DICT_DESCRIPTORS:
            variables = descriptor.__get__(value)
            fields = dict(variables) | fields
        for name, slot in namespace.items():
            if type(slot) is not MemberDescriptorType:
                continue
            if name == "__dict__":
                continue
            # The slot of a derived class hides that of its base.
            if name in fields:
                continue
            with contextlib.suppress(AttributeError):  # not assigned yet
                fields[name] = slot.__get__(value)
    return fields


def items_of(value: Any) -> Iterator[tuple[object, Any]]:
    """Yields the items of a dict, a list or a tuple, or of a subclass of these.

    Those of a NamedTuple come by their names.
    """
    # By the base's own methods: a subclass may have others.
    if is_a(value, dict):
        yield from dict.items(value)
    elif is_a(value, list):
        items = list.__iter__(value)
        yield from enumerate(items)
    elif is_a(value, tuple):
        items = tuple.__iter__(value)
        names = static(type(value), "_fields")
        if type(names) is tuple:
            yield from zip(names, items)
        else:
            yield from enumerate(items)


def code_of(function: Any, is_written: bool = False) -> CodeType | None:
    """Returns the code that runs when an object is called; None if it is in C.

    Args:
        function: any object.
        is_written: whether to look into wrappers, for the code that a user wrote.
    """
    for _ in range(20):  # wrappers of one function
        wrapped = None
        if type(function) is MethodType:
            wrapped = function.__func__
        elif type(function) is functools.partial:
            wrapped = function.func
        elif is_written:
            fields = fields_of(function)
            wrapped = fields.get("__wrapped__")
        if wrapped is None:
            break
        function = wrapped
    if type(function) is not FunctionType:
        function = static(type(function), "__call__")
    if type(function) is not FunctionType:
        return None
    return function.__code__


written_code = functools.partial(code_of, is_written=True)


def variables_of(frame: FrameType) -> Any:
    """Returns the local variables of a running function; none of an unknown namespace."""
    variables: Any = frame.f_locals
    if type(variables) is dict:
        return variables
    # A class body may have a namespace of a metaclass.
    if type(variables) is not _LOCALS:
        return {}
    code = frame.f_code
    if sys.version_info >= (3, 13, 2) or _COMPREHENSION not in code.co_code[::2]:
        return variables
    # To read a variable of a cell crashes while a comprehension reuses it:
    # https://github.com/python/cpython/issues/128396.
    cells = code.co_cellvars
    return {name: variables[name] for name in variables if name not in cells}


def _type_of_locals() -> type:
    frame: Any = inspect.currentframe()
    return type(frame.f_locals)


# With this a comprehension inside of a function begins, from Python 3.12 on.
_COMPREHENSION = dis.opmap.get("LOAD_FAST_AND_CLEAR", 0)
# In functions a proxy, from Python 3.13 on.
_LOCALS = _type_of_locals()
