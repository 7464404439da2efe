"""`dtypeguard run SCRIPT`: runs a script and adds the lines of source to type errors."""

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .._explain.colors import colored_notes
from .output import UsageError, default_form, write
from .script import run_module, run_script
from .watch import ScriptWatch

_OURS = os.path.dirname(__file__) + os.sep
USAGE = "usage: dtypeguard run [--all] [--json | --format FORM] [-m] SCRIPT [ARGS ...]"
_PRINTED = "text", "json", "markdown", "html", "github"
HELP = """
Runs a script, or with -m a module, as python does, with its output and exit status. The
notes on a type error of JAX's name the leaves, the line that promoted them, the line that
forced the promotion, and what to write. At the end, standard error lists the functions that
were compiled more than once, with what differs between the calls. With --all, notes and the
list have every leaf, where they otherwise fit on a screen. With --format github, as by
default where GITHUB_ACTIONS is set, GitHub shows the notes beside their lines. With --json,
or --format markdown or html, standard output ends with notes and list.
"""


class _Options(NamedTuple):
    form: str
    is_whole: bool
    is_module: bool
    script: Sequence[str]


def run(arguments: Sequence[str]) -> int:
    """Runs the named script with the arguments after its name."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE + "\n" + HELP)
        return 0 if arguments else 2
    options = _options(arguments)
    watching = contextlib.ExitStack()
    watch = watching.enter_context(ScriptWatch())
    watching.enter_context(_explained_threads(options.is_whole))
    ended: list[BaseException] = []  # by this error

    def end() -> None:
        watching.close()
        _tell(options, watch, next(iter(ended), None))

    sys.argv[:] = options.script
    try:
        (run_module if options.is_module else run_script)(options.script[0])
    except UsageError as error:
        raise UsageError(f"{error}. {USAGE}") from None
    except SystemExit:
        raise
    except BaseException as error:
        _explain(error, options.is_whole)
        ended.append(error)
        _print(error)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = lambda *_: None  # printed already
            raise  # so that Python ends by the signal
        return 1
    finally:
        threads = set(threading.enumerate()) - {threading.current_thread()}
        if any(not thread.daemon for thread in threads):
            atexit.register(end)  # Python waits for them first
        else:
            end()
    return 0


def _options(arguments: Sequence[str]) -> _Options:
    """The options, which end at the script: the rest belongs to that."""
    form, is_whole, rest = default_form(), False, [*arguments]
    while rest and rest[0].startswith("--"):
        name, equals, value = rest.pop(0).partition("=")
        if name == "--all":
            is_whole = True
        elif name == "--json":
            form = "json"
        elif name == "--format":
            form = value if equals or not rest else rest.pop(0)
        else:
            raise UsageError(f"{name} is no option of it. {USAGE}")
    if form not in _PRINTED:
        advice = f"Write one of {', '.join(_PRINTED)}"
        raise UsageError(f"--format {form!r} is no form. {advice}. {USAGE}")
    is_module = rest[:1] == ["-m"]
    script = rest[is_module:]
    if not script or script[0].startswith("-"):
        raise UsageError(f"{' '.join(arguments)!r} names no script. {USAGE}")
    return _Options(form, is_whole, is_module, script)


def _tell(options: _Options, watch: ScriptWatch, error: BaseException | None) -> None:
    """Prints what was compiled again, and all that was found in the form asked for."""
    lines = watch.lines(options.is_whole)
    sys.stdout.flush()
    is_printed = options.form in ("json", "markdown", "html")
    if lines and not is_printed:
        print(*lines, sep="\n", file=sys.stderr)
    if is_printed or (options.form == "github" and (lines or error)):
        from .forms import annotations, formed, of_run

        found = of_run(error, lines, watch.changed())
        if is_printed:
            write("-", formed(found, options.form).rstrip())
        else:
            print(*annotations(found.findings), sep="\n", file=sys.stderr)


def _print(error: BaseException) -> None:
    """Gives an error to the hook of the script; prints both if the hook raises."""
    try:
        with colored_notes(error):
            sys.excepthook(type(error), error, error.__traceback__)
    except Exception as failed:
        sys.__excepthook__(type(failed), failed, failed.__traceback__)


def _explain(error: BaseException, is_whole: bool) -> None:
    """Adds the notes to an error, and takes out the frames that Python would not print."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    error.with_traceback(trace)
    if "jax" in sys.modules:
        with contextlib.suppress(Exception):  # better no note than another error
            from .._explain.explain import explain_error, hide_jax

            explain_error(error, is_whole)
            hide_jax(error)


@contextlib.contextmanager
def _explained_threads(is_whole: bool) -> Iterator[None]:
    """Explains an error that ends a thread before it is printed."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if (error := args.exc_value) is not None:
            _explain(error, is_whole)
            trace = error.__traceback__
            args = threading.ExceptHookArgs((type(error), error, trace, args.thread))
        with colored_notes(error):
            before(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        if threading.excepthook is hook:
            threading.excepthook = before
