"""Reads what a command names: a target, and the arguments that `--inputs` names for it."""

import argparse
import contextlib
import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import jax

from .._carry.call import SplitTree
from .._carry.modules import spread
from .._carry.places import Names
from .._leaves.arguments import is_transformation
from .._leaves.types import Args, Kwargs
from .._source.files import package
from .._source.origin import origin_of_error
from .options import right
from .output import UsageError

FORM = (
    "Let --inputs name a tuple of the arguments, a dict of them by name, the only one, or "
    "a function that returns these."
)
# JAX before 0.4.35 has no name for it.
_OF_XLA = getattr(jax.errors, "JaxRuntimeError", ())


class NamedCall(NamedTuple):
    """A function that a command line names, and what `--inputs` gives it."""

    target: str
    inputs: str
    function: Any
    args: Args
    kwargs: Kwargs

    def misfit(self, function: Any = None) -> str:
        """Why the function, or another one, does not take them; empty if it does."""
        try:
            taken = Names.of(function or self.function).signature
            taken.bind(*self.args, **self.kwargs)
        except TypeError as error:
            return str(error)
        return ""

    @property
    def is_taken(self) -> bool:
        """Whether the outermost function takes them; it may add some to a call."""
        try:
            outer = inspect.signature(self.function, follow_wrapped=False)
            outer.bind(*self.args, **self.kwargs)
        except (TypeError, ValueError):  # also of an object that shows no signature
            return False
        return True

    @contextlib.contextmanager
    def running(self, *passed: type[Exception]) -> Iterator[None]:
        """Makes a usage error of what a run raises; it says whose error it is."""
        try:
            yield
        except (UsageError, *passed):
            raise
        except Exception as error:
            origin, reason = origin_of_error(error), _reason(error)
            if origin is None and str(error).startswith(("audit_precision", "lock")):
                raise UsageError(str(error)) from error
            given, target = f"what {self.inputs} gives", self.target
            last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
            whose = package(last.f_code.co_filename) or "Python"
            if self.misfit():
                what, advice = f"{target} does not run with {given}", FORM
            elif isinstance(error, _OF_XLA):
                what = f"XLA raises an error as it compiles or runs {target}"
                advice = f"It is one of XLA, and not of {self.inputs}."
            elif origin is not None:
                what = f"{target} raises {reason}"
                advice = f"It is an error of the program itself, called with {given}."
            else:
                what = f"{target} cannot be measured"
                advice = f"It is an error of {whose}."
            told = "" if what.endswith(reason) else f": {reason}"
            raise UsageError(f"{what}{told}{_line(error)}\n  {advice}") from error


class Reader:
    """Reads targets and inputs of one command, which may share a file and its classes."""

    def __init__(self, options: argparse.Namespace):
        self._options = options
        self._modules: dict[str, ModuleType] = {}

    def target(self) -> Any:
        """What the target names."""
        options = self._options
        return self.load(options.target, right(options.command))

    def step(self) -> Any:
        """The target of a command that takes no optimizer."""
        step, options = self.target(), self._options
        if is_transformation(step) and not inspect.isclass(step):
            advice = f"Write: dtypeguard audit {options.target}"
            if options.command != "audit":
                advice = "Write a step that calls its update."
            raise UsageError(f"{options.target} is an optimizer and no step. {advice}")
        return step

    def call(self, inputs: str = "") -> NamedCall:
        """The target with the arguments that `--inputs` or another name gives."""
        step, target = self.step(), self._options.target
        inputs = inputs or self._options.inputs
        make = self.arguments(inputs)
        with as_usage_error(f"{inputs} cannot be called"):
            return NamedCall(target, inputs, step, *make())

    def arguments(self, inputs: str) -> Callable[[], tuple[Args, Kwargs]]:
        """A function that gives arguments by position and by name.

        It raises a `UsageError` if there is no array in them: nothing would be checked.
        """
        where = self._options.target.rpartition(":")[0]
        advice = f"Write for example: --inputs {where}:inputs"
        if inputs.isidentifier():
            advice = f"Did you mean --inputs {where}:{inputs}?"
        made = self.load(inputs, advice)

        def make() -> tuple[Args, Kwargs]:
            given = made() if callable(made) else made
            if not SplitTree(spread(given)).arrays:
                what = "None" if given is None else "no array"
                raise UsageError(f"{inputs} gives {what}: nothing would be checked. {FORM}")
            # A state is often a named tuple: the only argument then.
            if type(given) is tuple:
                return given, {}
            return ((), given) if type(given) is dict else ((given,), {})

        return make

    def load(self, named: str, advice: str) -> Any:
        """Imports what `MODULE:NAME` or `FILE.py:NAME` names."""
        where, colon, name = named.rpartition(":")
        if not colon or not where or not name:
            module, dot, attribute = named.rpartition(".")
            is_dotted = dot and not colon and attribute != "py" and module
            meant = f"Did you mean {module}:{attribute}? " if is_dotted else ""
            raise UsageError(
                f"{named!r} is not MODULE:NAME or FILE.py:NAME. {meant}{advice}"
            )
        try:
            if where not in self._modules:
                is_file = where.endswith(".py")
                self._modules[where] = (_import_file if is_file else _import_module)(where)
        except (Exception, SystemExit) as error:  # a script may exit
            if where.endswith(".py") and "relative import" in str(error):
                advice = f"As a part of its package: write PACKAGE.MODULE:{name}."
            reason = f"{where} cannot be imported: {_reason(error)}"
            raise UsageError(f"{reason}. {advice}") from error
        found, part = self._modules[where], name
        try:
            for part in name.split("."):
                found = getattr(found, part)
        except AttributeError:
            like = _alike(found, part, where)
            meant = f" Did you mean {like}?" if like else ""
            raise UsageError(f"{where} has no {name}.{meant} {advice}") from None
        except Exception as error:  # of a property
            reason = f"{named} cannot be read: {_reason(error)}"
            raise UsageError(f"{reason}. {advice}") from error
        return found


@contextlib.contextmanager
def as_usage_error(what: str) -> Iterator[None]:
    """Makes a usage error of whatever is raised, with the line of the user's that did."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        reason = f"{what}: {_reason(error)}{_line(error)}"
        raise UsageError(f"{reason}\n  {FORM}") from error


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _line(error: BaseException) -> str:
    origin = origin_of_error(error)
    return "" if origin is None else f"\n    {origin.place}  {origin.code}"


def _alike(found: Any, part: str, where: str) -> str:
    """A name like one that is missing, or the same one in a module below."""
    inside = [
        f"{module.__name__}:{part}"
        for module in getattr(found, "__dict__", {}).values()
        if isinstance(module, ModuleType) and hasattr(module, part)
        if module.__name__.startswith(f"{where}.")
    ]
    return next(iter(inside or difflib.get_close_matches(part, dir(found), 1)), "")


def _import_module(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(name)


def _import_file(file: str) -> ModuleType:
    path = os.path.abspath(file)
    name = os.path.basename(path).removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    sys.path.insert(0, os.path.dirname(path))  # as `python FILE` does
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    argv, sys.argv = sys.argv, [file]
    try:
        spec.loader.exec_module(module)
    finally:
        sys.argv = argv
    return module
