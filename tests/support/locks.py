"""Locks of steps that tests write and change."""

import importlib.util
import linecache

import pytest

from dtypeguard._lock.step import lock_of
from dtypeguard.testing import check_lock


def traced(folder, source, **sizes):
    """The lock of the `step` of a program, called with its `inputs`."""
    file = folder / "train.py"
    file.write_text(source)
    linecache.checkcache(str(file))
    spec = importlib.util.spec_from_file_location("lock_train", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    inputs = module.inputs(**sizes) if callable(module.inputs) else module.inputs
    return lock_of(module.step, inputs, {}, str(folder / "step.lock"))


def updated(step, *args, path):
    """Writes the lock of a step, as with the variable that asks for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTYPEGUARD_UPDATE", "1")
        check_lock(step, *args, path=path)
