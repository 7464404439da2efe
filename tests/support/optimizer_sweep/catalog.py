"""Every optimizer and transformation of the installed Optax, ready to build and feed."""

import functools
import importlib
import inspect
import pkgutil
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import optax

from dtypeguard import fromage, multi_steps, prodigy
from dtypeguard._leaves.arguments import is_transformation, parameters, required
from dtypeguard._leaves.errors import first_line_of
from dtypeguard._leaves.types import Optimizer
from dtypeguard._sweep.inputs import (
    CONFIGURATIONS as CONFIGURATIONS,
    Entry as Entry,
)

from .recipes import ALWAYS, ARGUMENTS, BUILDERS, LEFT_OUT, RECIPES, Factory

_OURS = fromage, multi_steps, prodigy


class Unbuilt(NamedTuple):
    """A name that promises a transformation but is not in the catalogue."""

    id: str
    reason: str


@functools.cache
def entries() -> tuple[tuple[Entry, ...], tuple[Unbuilt, ...]]:
    """Every transformation that the catalogue can build, and every one that it cannot.

    It looks at what Optax exports, so that it covers a new release. An entry runs in
    float32 with x64 off; what does not run is among the rest, with the error.
    """
    built: list[Entry] = []
    unbuilt: list[Unbuilt] = []
    for entry, factory in _candidates():
        if entry.id in LEFT_OUT:
            unbuilt.append(Unbuilt(entry.id, LEFT_OUT[entry.id]))
            continue
        try:
            opt = entry.build()
            if not is_transformation(opt):
                raise TypeError(f"returned {opt!r}")
            _ = entry.extra_names  # runs it, and caches how
        except Exception as error:
            # A function without an annotation that fails or returns something else is one
            # of Optax's many helpers.
            if _promises_transformation(factory):
                unbuilt.append(Unbuilt(entry.id, first_line_of(error)))
        else:
            built.append(entry)
    return tuple(built), tuple(unbuilt)


@functools.cache
def by_id() -> dict[str, Entry]:
    """Every candidate, of which none is built."""
    return {entry.id: entry for entry, _ in _candidates()}


def _promises_transformation(factory: Callable[..., object]) -> bool:
    """Whether a factory says that it returns a transformation, or a factory of one.

    Its return annotation decides, or else its docstring; for a class, its methods.
    """
    if inspect.isclass(factory):
        # Stateful schedules also have an init and an update, but without params.
        init: Any = getattr(factory, "init", None)
        return is_transformation(factory) and "params" in parameters(init)
    if (annotation := _annotation(factory)) is not None:
        return any(word in annotation for word in ("Transformation", "Aggregator"))
    text = (getattr(factory, "__doc__", None) or "").lower()
    return "gradient transformation" in text or "gradienttransformation" in text


def _candidates() -> Iterator[tuple[Entry, Factory]]:
    """An entry for every factory that may return a transformation, and its variants."""
    for factory_id, factory in _factories():
        variants = [name for name in BUILDERS if name.startswith(f"{factory_id}[")]
        for entry_id in (factory_id, *variants):
            recipe = RECIPES.get(factory_id, ())
            make = functools.partial(BUILDERS.get(entry_id, _call_by_names), factory)
            yield Entry(entry_id, make, *recipe), factory


def _call_by_names(factory: Factory) -> Optimizer:
    """Calls a factory with a value for each parameter that needs one, chosen by name."""
    arguments, needed = {}, required(factory)
    for name in parameters(factory):
        if name in needed and name not in ARGUMENTS:
            raise LookupError(f"no value known for its parameter {name!r}")
        if name in needed or name in ALWAYS:
            arguments[name] = ARGUMENTS[name]()
    made: Any = factory(**arguments)
    if callable(made) and not is_transformation(made):
        made = made(learning_rate=1e-3)  # inject_hyperparams(adam) is a factory again
    return made


def _factories() -> Iterator[tuple[str, Factory]]:
    """Functions that may return a transformation, with the name that a user would write."""
    seen: set[int] = set()
    for path, module in _modules("optax", optax, set()):
        # One factory may have several names: its own comes first.
        members = sorted(
            vars(module).items(),
            key=lambda item: (getattr(item[1], "__name__", None) != item[0], item[0]),
        )
        found = {}
        for name, member in members:
            if not name.startswith("_") and id(member) not in seen and _may_make(member):
                seen.add(id(member))
                found[f"{path}.{name}"] = member
        yield from sorted(found.items())
    for factory in _OURS:
        yield f"dtypeguard.{factory.__name__}", factory


def _may_make(member: object) -> bool:
    if inspect.isclass(member):
        # Factories return a pair of an init and an update; the pair is not a factory.
        return _promises_transformation(member) and not issubclass(member, tuple)
    function = getattr(member, "func", member)  # optax.nadam is a partial
    if not callable(member) or not getattr(function, "__module__", "").startswith("optax"):
        return False
    return _annotation(member) is None or _promises_transformation(member)


def _annotation(function: Callable[..., object]) -> str | None:
    """The return annotation of a function; None if it has none."""
    try:
        found = inspect.signature(function).return_annotation
    except (TypeError, ValueError):
        return ""
    return None if found is inspect.Signature.empty else str(found)


def _modules(
    path: str, module: types.ModuleType, seen: set[int]
) -> Iterator[tuple[str, types.ModuleType]]:
    """A module and every public module below it, with the path that a user would write."""
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    if not hasattr(module, "__path__"):
        return  # it does not export the modules that it imports
    for info in pkgutil.iter_modules(module.__path__):
        if not info.name.startswith("_") and not info.name.endswith("_test"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                importlib.import_module(f"{module.__name__}.{info.name}")
    for name, member in sorted(vars(module).items()):
        if (
            isinstance(member, types.ModuleType)
            and member.__name__.startswith("optax.")
            and not name.startswith("_")
        ):
            yield from _modules(f"{path}.{name}", member, seen)
