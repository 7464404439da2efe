"""Locks of steps that tests write and change."""

import linecache
import runpy
from typing import Any

import pytest

from dtypeguard._lock.check import compared as compared
from dtypeguard._lock.lock_file import LockError as LockError, lock_text as lock_text
from dtypeguard._lock.step import lock_of as lock_of
from dtypeguard.testing import check_lock


def traced(folder, source, **sizes):
    """The lock of the `step` of a program, called with its `inputs`."""
    file = folder / "train.py"
    file.write_text(source)
    linecache.checkcache(str(file))
    found = runpy.run_path(str(file), run_name="lock_train")
    inputs = found["inputs"]
    args: Any = inputs(**sizes) if callable(inputs) else inputs
    return lock_of(found["step"], args, {}, str(folder / "step.lock"))


def body(text):
    """The lines of a lock without its comments, which have the releases."""
    return [line for line in text.splitlines() if not line.startswith("#")]


def updated(step, *args, path):
    """Writes the lock of a step, as with the variable that asks for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTYPEGUARD_UPDATE", "1")
        check_lock(step, *args, path=path)
