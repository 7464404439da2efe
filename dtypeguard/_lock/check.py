"""Locks a step, and compares it with a lock in a file."""

import contextlib
import inspect
import os
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from .._carry.carry import carry_of
from .._leaves.compat import CAN_LOCK, set_x64
from .._leaves.types import Step
from .compare import Differences, differences, is_of_another
from .report import ToldCause, report, told_causes
from .step import MayCarry, TracedStep, name_of_file, traced_step
from .text import LockError, read, text_of, write


class Locked(NamedTuple):
    """A step as it is now, beside the lock in a file.

    Attributes:
        now: the step.
        path: of the lock.
        found: what differs.
    """

    now: TracedStep
    path: str
    found: Differences

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return not (self.found.functions or self.found.leaves)

    def report(self, update: str = "") -> str:
        """What differs; ends with how to accept it."""
        return report(self.found, self.now, self.path, update)

    def causes(self) -> list[ToldCause]:
        """What differs, cause by cause."""
        return told_causes(self.found, self.now)

    def update(self) -> bool:
        """Writes the lock anew; returns whether that changed it."""
        text, checked = (
            text_of(self.now.lock),
            lambda x: [line for line in x.splitlines() if not line.startswith("#")],
        )
        with open(self.path, encoding="utf-8") as file:
            if checked(file.read()) == checked(text):
                return False
        write(self.path, text)
        return True


def lock_of(
    step: Step,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    path: str | None,
    carry: Any = 0,
    returned: Any = None,
    x64: bool | None = None,
    owner: str = "lock",
) -> TracedStep:
    """What a step computes in now."""
    if not CAN_LOCK:
        raise LockError(
            f"{owner} needs JAX 0.7 or newer, and this is JAX {jax.__version__}: older "
            "releases do not say which line an equation comes from in the same way."
        )
    flag = contextlib.nullcontext() if x64 is None else set_x64(x64)
    folder = os.path.dirname(os.path.abspath(path or "lock"))
    with flag, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the program warns when it runs
        place = carry_of(owner, step, carry, returned)
        call = MayCarry(step, place, args, dict(kwargs))
        return traced_step(call, step, _name(step, place.step, folder), folder)


def compared(now: TracedStep, path: str, *, is_update: bool = False) -> Locked:
    """A step beside the lock in a file."""
    lock = read(path)
    found = differences(lock, now)
    if is_of_another(lock, now, found):
        raise LockError(
            f"{path} is the lock of {lock.step}, and this is {now.lock.step}. Name its own "
            f"file, or remove {path} if {lock.step} is gone."
        )
    if (others := found.of_other_tree) and not is_update:
        first = ", ".join(x.path for x in others[:3]) + ", ..." * (len(others) > 3)
        which = "has no" if others[0].before == "" else "has"
        raise LockError(
            f"{path} {which} {first}: the inputs are of another tree than the one that is "
            "locked. Give it those inputs, or update the lock if the step now takes others."
        )
    return Locked(now, path, found)


def _name(step: Step, name: str, folder: str) -> str:
    """The file and the name of a step, as its code says where it has one."""
    inner: Any = step
    while (inside := getattr(inner, "func", None)) is not None:  # of a partial
        inner = inside
    code = getattr(inspect.unwrap(inner), "__code__", None)
    if code is None:
        return name
    name = code.co_qualname.replace("<locals>.", "")
    return f"{name_of_file(code.co_filename, folder)}:{name}"
