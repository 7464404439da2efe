"""Reads what a command names: a target, and the arguments that `--inputs` names for it."""

import argparse
import contextlib
import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

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
            taken = Names(function or self.function).signature
            taken.bind(*self.args, **self.kwargs)
        except TypeError as error:
            return str(error)
        return ""

    @contextlib.contextmanager
    def running(self, *own: type[Exception]) -> Iterator[None]:
        """Makes a usage error of what a run raises; it says whose error it is.

        Errors of these types are dtypeguard's own, which say what to do.
        """
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            is_users = origin_of_error(error) is not None
            is_own = str(error).startswith(("audit_precision", "lock")) and not is_users
            if isinstance(error, own) or is_own:
                raise UsageError(str(error)) from error
            given = f"what {self.inputs} gives"
            if self.misfit():
                what, advice = f"does not run with {given}:", FORM
            elif is_users:
                what = "raises"
                advice = f"It is an error of the program itself, called with {given}."
            else:
                what, advice = "cannot be measured:", "It is no error of the program."
            raise UsageError(f"{self.target} {what} {_reason(error)}", advice) from error


class Reader:
    """Reads targets and inputs of one command, which may share a file and its classes."""

    def __init__(self, options: argparse.Namespace):
        self._options = options
        self._modules: dict[str, ModuleType] = {}

    def target(self) -> Any:
        """What the target names."""
        return self.load(self._options.target, right(self._options.command))

    def call(self, inputs: str = "") -> NamedCall:
        """The target with the arguments that `--inputs` or another name gives.

        Without an array among them nothing would be checked.
        """
        inputs = inputs or self._options.inputs
        step, where = self.target(), self._options.target.rpartition(":")[0]
        name = inputs if inputs.isidentifier() else "inputs"
        given = self.load(inputs, f"Write for example: --inputs {where}:{name}")
        with as_usage_error(f"{inputs} cannot be called"):
            given = given() if callable(given) else given
        if not SplitTree(spread(given)).arrays:
            what = "None" if given is None else "no array"
            raise UsageError(f"{inputs} gives {what}: nothing would be checked. {FORM}")
        # A state is often a named tuple: the only argument then.
        args = () if type(given) is dict else given if type(given) is tuple else (given,)
        kwargs = given if type(given) is dict else {}
        return NamedCall(self._options.target, inputs, step, args, kwargs)

    def load(self, named: str, advice: str) -> Any:
        """Imports what `MODULE:NAME` or `FILE.py:NAME` names."""
        where, _, name = named.rpartition(":")
        if not where or not name:
            raise UsageError(f"{named!r} is not MODULE:NAME or FILE.py:NAME. {advice}")
        try:
            if where not in self._modules:
                is_file = where.endswith(".py")
                self._modules[where] = (_import_file if is_file else _import_module)(where)
        except (Exception, SystemExit) as error:  # a script may exit
            if where.endswith(".py") and "relative import" in str(error):
                advice = f"As a part of its package: write PACKAGE.MODULE:{name}."
            elif not isinstance(error, ImportError) and origin_of_error(error) is not None:
                advice = (
                    'Importing a script runs it: train under if __name__ == "__main__":'
                )
            reason = f"{where} cannot be imported: {_reason(error)}"
            raise UsageError(reason, advice) from error
        found = self._modules[where]
        for part in name.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                like = difflib.get_close_matches(part, dir(found), 1)
                meant = f" Did you mean {like[0]}?" if like else ""
                raise UsageError(f"{where} has no {name}.{meant} {advice}") from None
            except Exception as error:  # of a property
                raise UsageError(f"{named} cannot be read: {_reason(error)}") from error
        return found


@contextlib.contextmanager
def as_usage_error(what: str, advice: str = FORM) -> Iterator[None]:
    """Makes a usage error of whatever is raised, with the line of the user's that did."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{what}: {_reason(error)}", advice) from error


def _reason(error: BaseException) -> str:
    """An error, with the line of the user's that raised it."""
    origin = origin_of_error(error)
    line = "" if origin is None else f"\n    {origin.place}  {origin.code}"
    return f"{type(error).__name__}: {error}{line}"


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
