"""A plugin for pytest: a test that fails over types ends with the note of `explain`.

It is an entry point of the installed package, and `-p no:dtypeguard` leaves it out.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from . import explain, recording

_OPTION, _DEFAULT, _HIDDEN = "jax_traceback_filtering", "auto", "tracebackhide"
_VARIABLE, _RECORD = "DTYPEGUARD_UPDATE", "dtypeguard_record"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that writes locks, and the one that records nothing."""
    parser.getgroup("dtypeguard").addoption(
        "--dtypeguard-lock-update",
        action="store_true",
        help=f"have check_lock write its files anew, as with {_VARIABLE}=1",
    )
    parser.addini(
        _RECORD,
        type="bool",
        default=True,
        help="record the lines that make arrays, for the notes on errors",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Sets the variable that `check_lock` reads, in workers as well."""
    if config.getoption("--dtypeguard-lock-update"):
        patch = pytest.MonkeyPatch()
        patch.setenv(_VARIABLE, "1")
        config.add_cleanup(patch.undo)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Has the lines that make arrays recorded, once JAX is imported."""
    with recording() if item.config.getini(_RECORD) else contextlib.nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Keeps JAX's frames in what a test raises, from which notes are made.

    JAX is to hide them from who prints an error, as it does by itself in IPython, rather
    than take them out of it. It is left alone where it is told how.
    """
    config: Any = getattr(sys.modules.get("jax"), "config", None)
    is_ours = getattr(config, _OPTION, None) == _DEFAULT
    if is_ours:
        config.update(_OPTION, _HIDDEN)
    try:
        return (yield)
    finally:
        if is_ours and getattr(config, _OPTION) == _HIDDEN:
            config.update(_OPTION, _DEFAULT)


pytest_runtest_setup = pytest_runtest_call  # what a fixture raises


@pytest.hookimpl
def pytest_runtest_makereport(call: pytest.CallInfo[Any]) -> None:
    """Adds the note to the error that ends a test or a fixture."""
    if call.excinfo is not None:
        explain(call.excinfo.value)
