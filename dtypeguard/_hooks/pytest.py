"""A plugin for pytest: a test that fails over types ends with the note of `explain`.

It is an entry point of the installed package, and `-p no:dtypeguard` leaves it out.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from .kept_frames import explain, kept_frames, recorded

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
    with recorded(bool(item.config.getini(_RECORD))):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Keeps JAX's frames in what a fixture raises."""
    with kept_frames():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Keeps JAX's frames in what a test raises."""
    with kept_frames():
        return (yield)


@pytest.hookimpl
def pytest_runtest_makereport(call: pytest.CallInfo[Any]) -> None:
    """Adds the note to the error that ends a test or a fixture."""
    if call.excinfo is not None:
        explain(call.excinfo.value)
