"""`dtypeguard run SCRIPT`: runs a script and adds the lines of source to type errors.

Nothing here imports JAX. Until the script does, it may set variables that JAX reads, or
choose which JAX it imports.
"""

import argparse
import atexit
import contextlib
import importlib.machinery
import io
import os
import runpy
import sys
import threading
import types
from typing import Any

from .._explain.colors import color_notes, is_colored
from .options import UsageError
from .output import print_text

_OUR_FOLDER = os.path.dirname(__file__) + os.sep


class ScriptWatch:
    """Has JAX keep its frames, and records compilations and arrays, until it is closed.

    As a finder of modules it sees JAX import its own files, and finds none of them.
    """

    compilations: Any = None  # from the first one on
    error: BaseException | None = None  # that ended the script

    def __init__(self) -> None:
        self._recording = contextlib.ExitStack()
        self._is_open = True
        # In front of the others: the first that answers ends the search.
        sys.meta_path.insert(0, self)
        self._start()

    def close(self) -> None:
        """Ends the record."""
        self._is_open = False  # before JAX 0.9 no listener can be taken away
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._recording.close()

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Starts with the first file of JAX's after its options."""
        # It returns None, so that the finders behind it go on.
        if name.startswith("jax."):
            self._start()

    def _start(self) -> None:
        if not hasattr(sys.modules.get("jax"), "config"):
            return
        sys.meta_path.remove(self)
        with contextlib.suppress(Exception):  # a module of that name is not JAX
            from jax import monitoring

            from .._explain.unfiltered import UNFILTERED

            UNFILTERED.enter()
            self._recording.callback(UNFILTERED.leave)
            monitoring.register_event_duration_secs_listener(self._listen)
            from .._recording.monitored import RECORD

            self._recording.enter_context(RECORD)

    def _listen(self, event: str, duration_secs: float, **kwargs: object) -> None:
        if not self._is_open or not event.endswith("/backend_compile_duration"):
            return
        with contextlib.suppress(Exception):  # the list lacks it; the script runs on
            from .._recompilation.record import Compilations

            if self.compilations is None:
                self.compilations = Compilations()
            self.compilations.record(sys._getframe(1))


def run_command(options: argparse.Namespace) -> int:
    """Runs the named script with the arguments after its name."""
    if not options.script:
        raise UsageError("no script is named. Write for example: dtypeguard run train.py")
    watch = ScriptWatch()
    # In place: a library may have kept the list.
    sys.argv[:] = options.script
    try:
        if options.is_module:
            _run_module(options.script[0])
        else:
            _run_script(options.script[0])
    except (UsageError, SystemExit):  # the script's own status
        raise
    except BaseException as error:
        _add_notes(error, options)
        watch.error = error
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = _show_nothing  # it is printed already
            raise  # so that Python ends by the signal
        return 1
    finally:
        threads = [thread for thread in threading.enumerate() if not thread.daemon]
        if len(threads) > 1:  # this one, and others for which Python waits first
            atexit.register(_print_findings, options, watch)
        else:
            _print_findings(options, watch)
    return 0


def _show_nothing(*exception: object) -> None:
    pass


def _print_findings(options: argparse.Namespace, watch: ScriptWatch) -> None:
    """Prints what was compiled again, and all that was found in the form asked for."""
    watch.close()
    functions = watch.compilations.functions() if watch.compilations else []
    lines = []
    for function in functions:
        lines += function.lines(options.all)
    sys.stdout.flush()  # what the script has printed comes first
    # The forms import JAX's options, which a script without JAX is spared.
    if options.format == "json":
        from .forms import json_of_run

        print_text(json_of_run(watch.error, lines), sys.stdout)
        return
    if lines:
        print(*lines, sep="\n", file=sys.stderr)
    if options.format == "github":
        from .forms import annotations, notes_on

        commands = []
        for note in notes_on(watch.error):
            commands += annotations(note.text, "error", note.leaves)
        if lines:
            origins = [function.origins for function in functions]
            commands += annotations("\n".join(lines), "warning", origins)
        for command in commands:
            print(command, file=sys.stderr)


def _add_notes(error: BaseException, options: argparse.Namespace) -> None:
    """Adds the notes to an error, and takes out the frames that Python would not print."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
        trace = trace.tb_next
    error.with_traceback(trace)
    if "jax" in sys.modules:
        with contextlib.suppress(Exception):  # better no note than another error
            from .._explain.explain import explain_error
            from .._explain.unfiltered import hide_jax, printed

            explain_error(error, options.all)
            hide_jax(error)
            # The other forms are made of the notes as they are.
            if options.format == "text" and is_colored(sys.stderr):
                color_notes(printed(error))


def _run_script(file: str) -> None:
    """Runs a script, or what `python FOLDER` runs, in a `__main__` of its own.

    That stays until the process ends: threads and functions of `atexit` need it.
    """
    if os.path.isdir(file) or file.endswith((".zip", ".pyz")):
        runpy.run_path(file, run_name="__main__")
        return
    try:
        with io.open_code(os.path.abspath(file)) as source:
            text = source.read()
    except OSError as error:
        raise UsageError(f"can't open file {file!r}: {error.strerror}") from None
    if not sys.flags.safe_path:  # python -P
        sys.path[0] = os.path.dirname(os.path.realpath(file))
    path = os.path.join(os.getcwd(), file)
    main = types.ModuleType("__main__")
    # What Python itself sets; pickle and logging read it.
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    vars(main)["__cached__"] = None
    sys.modules["__main__"] = main
    # Without `dont_inherit` the script would have this file's `from __future__`.
    exec(compile(text, path, "exec", dont_inherit=True), vars(main))


def _run_module(name: str) -> None:
    """Runs what `python -m NAME` runs."""
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    # With `alter_sys` the module is `__main__`, where pickle looks for its classes.
    runpy.run_module(name, run_name="__main__", alter_sys=True)
