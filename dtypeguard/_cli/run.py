"""`dtypeguard run SCRIPT`: runs a script and adds the lines of source to type errors."""

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence

from .._explain.colors import colored_notes
from .load import UsageError
from .output import default_form
from .script import NotFound, run_module, run_script
from .watch import ScriptWatch

_OURS = os.path.dirname(__file__) + os.sep
USAGE = "usage: dtypeguard run [--all] [--json | --format FORM] [-m] SCRIPT [ARGS ...]"
_PRINTED = "text", "json", "markdown", "html", "github"
HELP = """
Runs a script, standard input (-), or with -m a module, as python does, with its output and
exit status. The notes on a type error of JAX's name the leaves, the line that promoted
them, the line that forced the promotion, and what to write. At the end, standard error
lists the functions that were compiled again only because the type of an argument changed.
With --all, notes and the list have every leaf, where they otherwise fit on a screen.
With --format github, as by default where GITHUB_ACTIONS is set, GitHub shows the notes
beside their lines. With --json, markdown or html, standard output ends with notes and list.
"""


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
    form, is_whole, arguments = _options(arguments)
    is_module = arguments[:1] == ["-m"]
    rest = arguments[is_module:]
    if not rest or (not is_module and rest[0].startswith("-") and rest[0] != "-"):
        raise UsageError(f"{' '.join(arguments)!r} names no script. {USAGE}")
    watching = contextlib.ExitStack()
    watch = watching.enter_context(ScriptWatch())
    watching.enter_context(_explained_threads(watch, is_whole))
    ended: list[BaseException] = []  # by this error

    def end() -> None:
        watching.close()
        lines = watch.lines(is_whole)
        sys.stdout.flush()
        if form in ("json", "markdown", "html"):
            from .forms import formed, of_run

            print(formed(of_run(ended, lines, watch.changed()), form).rstrip())
        elif lines:
            print(*lines, sep="\n", file=sys.stderr)
        if form == "github" and (lines or ended):
            from .forms import annotations, of_run

            found = of_run(ended, lines, watch.changed()).findings
            for line in annotations(found):
                print(line, file=sys.stderr)

    sys.argv[:] = rest
    try:
        (run_module if is_module else run_script)(rest[0])
    except NotFound as error:
        raise UsageError(f"{str(error).rstrip('.')}. {USAGE}") from None
    except SystemExit:
        raise
    except BaseException as error:
        _explain(error, watch, is_whole)
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


def _options(arguments: Sequence[str]) -> tuple[str, bool, Sequence[str]]:
    """The form, whether every leaf is listed, and the script with what follows."""
    form, is_whole = default_form(), False
    while arguments and arguments[0].startswith("--"):
        name, equals, value = arguments[0].partition("=")
        if name == "--all" and not equals:
            is_whole, arguments = True, arguments[1:]
            continue
        if name == "--json" and not equals:
            form, arguments = "json", arguments[1:]
            continue
        if name != "--format":
            break
        if not equals:
            value, arguments = next(iter(arguments[1:]), ""), arguments[1:]
        if value not in _PRINTED:
            right = f"Write one of {', '.join(_PRINTED)}"
            raise UsageError(f"--format {value!r} is no form. {right}. {USAGE}")
        form, arguments = value, arguments[1:]
    return form, is_whole, arguments


def _print(error: BaseException) -> None:
    """Gives an error to the hook of the script, and prints what the hook raises."""
    try:
        with colored_notes(error):
            sys.excepthook(type(error), error, error.__traceback__)
    except Exception as failed:
        first = failed  # of those that the hook raised, each the context of the next
        while first.__context__ is not None and first.__context__ is not error:
            first = first.__context__
        first.__context__ = None
        trace = failed.__traceback__
        failed.with_traceback(trace and trace.tb_next)
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(failed), failed, failed.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)


def _explain(error: BaseException, watch: ScriptWatch, is_whole: bool) -> None:
    """Adds the notes to an error, and takes out the frames that Python would not print."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    error.with_traceback(trace)
    if "jax" in sys.modules:
        with contextlib.suppress(Exception):  # better no note than another error
            from .explained import explain

            explain(error, is_whole, watch.before)


@contextlib.contextmanager
def _explained_threads(watch: ScriptWatch, is_whole: bool) -> Iterator[None]:
    """Explains an error that ends a thread before it is printed."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if (error := args.exc_value) is not None:
            _explain(error, watch, is_whole)
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
