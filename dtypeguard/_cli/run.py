"""`dtypeguard run SCRIPT`: runs a script and adds the lines of source to type errors."""

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import jax

from .._explain.control_flow import without
from .._explain.explain import explain, explain_error, printed
from .load import UsageError
from .recompiled import Recompiled
from .script import NotFound, execute, module, script

_OURS = os.path.dirname(__file__) + os.sep
USAGE = "usage: dtypeguard run [-m] SCRIPT [ARGS ...]"
HELP = """
Runs a script, or with -m a module, as python does, with its output and exit status. The
notes on a type error of JAX's name the leaves, the line that promoted them, the line that
forced the promotion, and what to write. At the end, standard error lists the functions that
were compiled again only because the type of an argument changed."""


def run(arguments: Sequence[str]) -> int:
    """Runs the named script with the arguments after its name.

    Returns:
        1 if the script raised, else 0.

    Raises:
        SystemExit: as the script raises it.
        KeyboardInterrupt: likewise, once it is printed.
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
        with _JaxAsNew(), recompiled, explain(), _explained_threads():
            execute(program, rest[1:])
    except SystemExit:
        raise
    except BaseException as error:
        for part in printed(error):
            part.__traceback__ = without(part.__traceback__, _OURS)
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = lambda *_: None  # printed already
            raise  # so that Python ends by the signal
        return 1
    finally:
        if lines := recompiled.lines():
            sys.stdout.flush()
            print(*lines, sep="\n", file=sys.stderr)
    return 0


@contextlib.contextmanager
def _explained_threads() -> Iterator[None]:
    """Explains an error that ends a thread before it is printed."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            explain_error(args.exc_value)
        before(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        if threading.excepthook is hook:
            threading.excepthook = before


class _JaxAsNew(importlib.abc.Loader):
    """Hides that JAX is imported until the script imports it.

    JAX reads its options from the environment when it is imported, and scripts set them
    before.
    """

    def __enter__(self):
        self._environment = dict(os.environ)
        sys.meta_path.insert(0, self)
        self._jax = sys.modules.pop("jax")

    def __exit__(self, *exception):
        self._back()

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds JAX, once."""
        if name != "jax":
            return None
        self._spec = self._jax.__spec__
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """JAX, as it is."""
        return self._jax

    def exec_module(self, module: ModuleType) -> None:
        """Adopts the options that the script has set."""
        module.__spec__ = self._spec
        self._back()
        for name, text in os.environ.items():
            is_new = self._environment.get(name) != text
            # The notes need the frames that this one would take out.
            if name.startswith("JAX_") and is_new and name != "JAX_TRACEBACK_FILTERING":
                _set_option(name.lower(), text)

    def _back(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        sys.modules.setdefault("jax", self._jax)


def _set_option(name: str, text: str) -> None:
    kinds: dict[type, Callable[[str], object]] = {
        bool: lambda text: text.lower() in ("y", "yes", "t", "true", "on", "1"),
        int: int,
        float: float,
    }
    try:
        kind = type(getattr(jax.config, name))
        jax.config.update(name, kinds.get(kind, str)(text))
    except (AttributeError, ValueError, TypeError):  # an unknown option or value
        return
