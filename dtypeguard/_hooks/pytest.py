"""A plugin for pytest: a test that fails over types ends with the note of `explain`.

It is an entry point of the installed package, and `-p no:dtypeguard` leaves it out.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from . import add_notes_if_jax, recording

# JAX's option, and two of its values.
_FILTERING = "jax_traceback_filtering"
_DEFAULT = "auto"
_HIDDEN = "tracebackhide"
_VARIABLE = "DTYPEGUARD_UPDATE"
# The names of the option and of the setting that have lines recorded.
_RECORD_OPTION = "--dtypeguard-record"
_RECORD_SETTING = "dtypeguard_record"
_ADVICE = f"(pytest {_RECORD_OPTION} records lines, and names more of them.)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options that write locks and record lines."""
    group = parser.getgroup("dtypeguard")
    group.addoption(
        "--dtypeguard-lock-update",
        action="store_true",
        help=f"have check_lock write its files anew, as with {_VARIABLE}=1",
    )
    group.addoption(
        _RECORD_OPTION,
        action="store_true",
        help="record the lines that make arrays (from Python 3.12 on), so that notes on "
        f"errors name them; in every run with {_RECORD_SETTING} = true",
    )
    parser.addini(_RECORD_SETTING, type="bool", help=f"as with {_RECORD_OPTION}")


def pytest_configure(config: pytest.Config) -> None:
    """Sets the variable that `check_lock` reads, in workers as well."""
    if config.getoption("--dtypeguard-lock-update"):
        # A run inside of a run, as of a plugin's tests, is not to inherit it.
        patch = pytest.MonkeyPatch()
        patch.setenv(_VARIABLE, "1")
        config.add_cleanup(patch.undo)


def _records_lines(config: pytest.Config) -> bool:
    return config.getoption(_RECORD_OPTION) or config.getini(_RECORD_SETTING)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Has the lines that make arrays recorded, where that is asked for.

    `sys.monitoring` slows what runs, and most projects that have dtypeguard beside them
    never fail over types.
    """
    with recording() if _records_lines(item.config) else contextlib.nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Keeps JAX's frames in what a test raises, from which notes are made.

    JAX is to hide them from who prints an error, as it does by itself in IPython, rather
    than take them out of it. It is left alone where it is told how.
    """
    config: Any = getattr(sys.modules.get("jax"), "config", None)
    is_ours = getattr(config, _FILTERING, None) == _DEFAULT
    if is_ours:
        config.update(_FILTERING, _HIDDEN)
    try:
        return (yield)
    finally:
        if is_ours and getattr(config, _FILTERING) == _HIDDEN:
            config.update(_FILTERING, _DEFAULT)


pytest_runtest_setup = pytest_runtest_call  # what a fixture raises


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
    """Adds the note to the error that ends a test or a fixture."""
    # Before pytest makes its report: that holds the text of the error.
    if call.excinfo is not None:
        add_notes_if_jax(call.excinfo.value, "" if _records_lines(item.config) else _ADVICE)
