"""The arguments that `--inputs` names: of a step, or of a function of arrays."""

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import jax

from .._carry.call import SplitTree
from .._carry.modules import spread
from .._carry.places import Names
from .._leaves.types import Args, Kwargs, PyTree
from .._source.files import package
from .._source.origin import origin_of_error
from .load import UsageError, load

# JAX before 0.4.35 has no name for it.
_OF_XLA = getattr(jax.errors, "JaxRuntimeError", ())
FORM = (
    "Let --inputs name a tuple of the arguments, a dict of them by name, the only one, or "
    "a function that returns these."
)


def load_inputs(
    inputs: str, target: str, modules: dict[str, ModuleType]
) -> Callable[[], tuple[Args, Kwargs]]:
    """Imports what `--inputs` names, for a target that stands in a module or a file.

    Returns:
        A function that gives the arguments by position and by name. It raises a
        `UsageError` if there is no array in them: nothing would be checked.

    Raises:
        UsageError: as `load` does.
    """
    where = target.rpartition(":")[0]
    right = f"Write for example: --inputs {where}:inputs"
    if inputs.isidentifier():
        right = f"Did you mean --inputs {where}:{inputs}?"
    made = load(inputs, modules, right)

    def make() -> tuple[Args, Kwargs]:
        given = made() if callable(made) else made
        if not SplitTree(spread(given)).arrays:
            what = "None" if given is None else "no array"
            raise UsageError(f"{inputs} gives {what}: nothing would be checked. {FORM}")
        return _arguments(given)

    return make


def _arguments(made: PyTree) -> tuple[Args, Kwargs]:
    """Arguments by position and by name: of a tuple, of a dict, or of the only one."""
    # A state is often a named tuple: the only argument then.
    if type(made) is tuple:
        return made, {}
    return ((), made) if type(made) is dict else ((made,), {})


def misfit(function: Any, args: Args, kwargs: Kwargs) -> str:
    """Why a function does not take these arguments, by its signature; empty if it does."""
    try:
        Names.of(function).signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""


def takes(function: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether the outermost function takes these arguments; it may add some to a call."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    except (TypeError, ValueError):  # also of an object that shows no signature
        return False
    return True


@contextlib.contextmanager
def as_error_of_run(
    target: str,
    inputs: str,
    call: tuple[Callable[..., Any], Args, Kwargs],
    *passed: type[Exception],
) -> Iterator[None]:
    """Makes a usage error of what a run of a function raises; it says whose error it is.

    Args:
        target: the function as the command line names it.
        inputs: its arguments, likewise.
        call: both.
        *passed: errors that are raised as they are.
    """
    try:
        yield
    except (UsageError, *passed):
        raise
    except Exception as error:
        origin, reason = origin_of_error(error), f"{type(error).__name__}: {error}"
        if origin is None and str(error).startswith(("audit_precision", "lock")):
            raise UsageError(str(error)) from error
        where = "" if origin is None else f"\n    {origin.place}  {origin.code}"
        if misfit(*call):
            unfit = f"{target} does not run with what {inputs} gives"
            raise UsageError(f"{unfit}: {reason}{where}\n  {FORM}") from error
        if isinstance(error, _OF_XLA):
            what = f"XLA raises an error as it compiles or runs {target}: {reason}{where}"
            raise UsageError(f"{what}\n  It is one of XLA, and not of {inputs}.") from error
        if origin is not None:
            what = f"{target} raises {reason}{where}"
            whose = f"an error of the program itself, called with what {inputs} gives"
        else:
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            what = f"{target} cannot be measured: {reason}"
            whose = f"an error of {package(frame.f_code.co_filename) or 'Python'}"
        raise UsageError(f"{what}\n  It is {whose}.") from error


@contextlib.contextmanager
def as_usage_error(what: str, *passed: type[Exception]) -> Iterator[None]:
    """Makes a usage error of whatever is raised, with the line of the user's that did.

    Args:
        what: how its message begins.
        *passed: errors that are raised as they are.
    """
    try:
        yield
    except (UsageError, *passed):
        raise
    except Exception as error:
        origin = origin_of_error(error)
        where = "" if origin is None else f"\n    {origin.place}  {origin.code}"
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"{what}: {reason}{where}\n  {FORM}") from error
