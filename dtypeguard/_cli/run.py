"""`dtypeguard run SCRIPT`: a script whose errors over types name the lines of source."""

import importlib.abc
import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax

from .._explain.control_flow import without
from .._explain.explain import explain, explain_error, printed
from .._leaves.types import DType
from .recompiled import Recompiled
from .script import NotFound, execute, module, script
from .target import UsageError

_OURS = os.path.dirname(__file__) + os.sep
USAGE = "usage: dtypeguard run [-m] SCRIPT [ARGS ...]"
HELP = """
Runs a script, or with -m a module, as python does, with its output and exit status. An
error of JAX's over types says in notes which leaves it is about, which line promoted them,
which line forced that, and what to write. At the end standard error has the functions that
were compiled again only because the type of an argument changed."""


def run(arguments: Sequence[str]) -> int:
    """Runs the script that is named, with the arguments behind it.

    Returns:
        1 if the script raised, else 0.

    Raises:
        SystemExit: of the script.
        KeyboardInterrupt: likewise; it has been printed then.
        UsageError: if there is no such script.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE + "\n" + HELP)
        return 0 if arguments else 2
    make, rest = (script, arguments) if arguments[0] != "-m" else (module, arguments[1:])
    if not rest or (make is script and rest[0].startswith("-")):
        raise UsageError(f"{' '.join(arguments)!r} names no script. {USAGE}")
    try:
        program = make(rest[0])
    except NotFound as error:
        raise UsageError(f"{error}. {USAGE}") from None
    except (SyntaxError, ValueError) as error:
        sys.excepthook(type(error), error.with_traceback(None), None)
        return 1
    recompiled = Recompiled()
    try:
        with _JaxAsNew(), recompiled, explain(), _ExplainedThreads():
            execute(program, rest[1:])
    except SystemExit:
        raise
    except BaseException as error:
        for part in printed(error):
            part.__traceback__ = without(part.__traceback__, _OURS)
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = lambda *error: (
                None
            )  # printed already; Python ends by the signal
            raise
        return 1
    finally:
        _print_last(recompiled.lines())
    return 0


def _print_last(lines: Sequence[str]) -> None:
    if lines:
        sys.stdout.flush()
        print(*lines, sep="\n", file=sys.stderr)


class _ExplainedThreads:
    """While entered, an error that ends a thread is explained before it is printed."""

    def __enter__(self):
        before = self._before = threading.excepthook

        def hook(args: Any) -> None:
            if args.exc_value is not None:
                explain_error(args.exc_value)
            before(args)

        self._hook = threading.excepthook = hook

    def __exit__(self, *exception):
        if threading.excepthook is self._hook:
            threading.excepthook = self._before


class _JaxAsNew(importlib.abc.Loader):
    """While entered, JAX seems to be imported when the script does so first.

    It reads its options from the environment at that moment, and scripts set them before.
    """

    def __enter__(self):
        self._environment = dict(os.environ)
        sys.meta_path.insert(0, self)
        self._jax = sys.modules.pop("jax")

    def __exit__(self, *exception):
        self._back()

    def find_spec(self, name: str, path: Any = None, target: DType = None) -> Any:
        """Finds JAX, once."""
        if name != "jax":
            return None
        self._spec = self._jax.__spec__
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """JAX, as it is."""
        return self._jax

    def exec_module(self, module: ModuleType) -> None:
        """Takes over the options that were set in the meantime."""
        module.__spec__ = self._spec
        self._back()
        for name, text in os.environ.items():
            is_new = self._environment.get(name) != text
            # This one is what the notes are made from.
            if name.startswith("JAX_") and is_new and name != "JAX_TRACEBACK_FILTERING":
                _set_option(name.lower(), text)

    def _back(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        sys.modules.setdefault("jax", self._jax)


def _set_option(name: str, text: str) -> None:
    kinds: dict[type, Callable[[str], Any]] = {
        bool: lambda text: text.lower() in ("y", "yes", "t", "true", "on", "1"),
        int: int,
        float: float,
    }
    try:
        kind = type(getattr(jax.config, name))
        jax.config.update(name, kinds.get(kind, str)(text))
    except (AttributeError, ValueError, TypeError):  # none of its options, or no value
        return
