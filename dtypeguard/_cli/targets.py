"""Reads what a command names: a target, and the arguments that `--inputs` names for it."""

import argparse
import contextlib
import dataclasses
import importlib
import importlib.machinery
import operator
import os
import shlex
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .._carry.modules import spread
from .._carry.places import Names
from .._carry.split import SplitTree
from .._leaves.types import Args, Kwargs
from .._source.origin import origin_of_error
from .options import UsageError, right

FORM = (
    "Let --inputs name a tuple of the arguments, a dict of them by name, the only one, or "
    "a function that returns these."
)


@dataclasses.dataclass(frozen=True)
class NamedCall:
    """A function and its arguments, by the names that a command line has for both."""

    target: str
    inputs: str
    function: Any
    args: Args
    kwargs: Kwargs

    def misfit(self) -> str:
        """Returns why the function takes no such arguments; else empty."""
        try:
            Names(self.function).signature.bind(*self.args, **self.kwargs)
        except TypeError as error:
            return str(error)
        return ""

    @contextlib.contextmanager
    def running(self, *usage_errors: type[Exception]) -> Iterator[None]:
        """Makes a usage error of any error.

        Args:
            usage_errors: the types of errors of dtypeguard, which say what to do.
        """
        # Inputs that fit are not what is wrong: it is an error of the program itself.
        advice = [FORM] if self.misfit() else []
        problem = f"{self.target} cannot be checked with what {self.inputs} gives"
        with as_usage_error(problem, *advice):
            try:
                yield
            except usage_errors as error:
                raise UsageError(str(error)) from error


class Reader:
    """Reads targets and inputs of one command, which may share a file and its classes."""

    def __init__(self, options: argparse.Namespace):
        self._options = options
        self._modules: dict[str, ModuleType] = {}

    def target(self) -> Any:
        """Returns what the target names."""
        return self.load(self._options.target, right(self._options.command))

    def call(self, inputs: str = "") -> NamedCall:
        """Returns the target with the arguments that `--inputs` or another name gives."""
        inputs = inputs or self._options.inputs
        function = self.target()
        # Most often the file alone is missing: the inputs stand beside the function.
        example = shlex.quote(f"{self._options.target.rpartition(':')[0]}:inputs")
        value = self.load(inputs, f"Write for example: --inputs {example}")
        if callable(value):
            with as_usage_error(f"{inputs} cannot be called", FORM):
                value = value()
        # A check of nothing would succeed.
        if not SplitTree(spread(value)).arrays:
            raise UsageError(f"{inputs} gives no array: nothing would be checked. {FORM}")
        args = ()
        kwargs = {}
        # By type alone: a named tuple, or a dict of an own kind, is one argument.
        if type(value) is dict:
            kwargs = value
        elif type(value) is tuple:
            args = value
        else:
            args = (value,)
        return NamedCall(self._options.target, inputs, function, args, kwargs)

    def load(self, name: str, advice: str) -> Any:
        """Imports what `MODULE:NAME` or `FILE.py:NAME` names."""
        where, _, attribute = name.rpartition(":")
        if not where or not attribute:
            raise UsageError(f"{name!r} is not MODULE:NAME or FILE.py:NAME. {advice}")
        # Once: a second import would make other classes, which match nothing.
        if where not in self._modules:
            self._modules[where] = _imported(where, advice)
        # A property or a lazy module may raise any error.
        with as_usage_error(f"{name} cannot be read", advice):
            return operator.attrgetter(attribute)(self._modules[where])


@contextlib.contextmanager
def as_usage_error(problem: str, *advice: str) -> Iterator[None]:
    """Makes a usage error of any error, with the line of the user's that raised it."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{problem}: {reason(error)}", *advice) from error


def reason(error: BaseException) -> str:
    """Returns an error with the line of the user's that raised it."""
    text = f"{type(error).__name__}: {error}"
    origin = origin_of_error(error)
    return text if origin is None else f"{text}\n    {origin.place}  {origin.code}"


def _imported(where: str, advice: str) -> ModuleType:
    """Imports a file or a module."""
    is_file = where.endswith(".py")
    if is_file:
        advice = 'Importing a script runs it: train under if __name__ == "__main__":'
    with as_usage_error(f"{where} cannot be imported", advice):
        if is_file:
            return _import_file(where)
        if os.getcwd() not in sys.path:  # as `python -m` does
            sys.path.insert(0, os.getcwd())
        return importlib.import_module(where)


def _import_file(file: str) -> ModuleType:
    path = os.path.abspath(file)
    name = os.path.basename(path).removesuffix(".py")
    sys.path.insert(0, os.path.dirname(path))  # as `python FILE` does
    # Not by its name, which an installed package or a module of Python may have as well.
    module = ModuleType(name)
    module.__file__ = path
    # Classes of the file are pickled, and found again, by the name of their module.
    sys.modules.setdefault(name, module)
    # A script may parse the options of the command line when it is imported.
    argv = sys.argv
    sys.argv = [file]
    try:
        importlib.machinery.SourceFileLoader(name, path).exec_module(module)
    finally:
        sys.argv = argv
    return module
